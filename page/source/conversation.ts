// A conversation is a tree: an edit or another try is a sibling, and `leaf` says which branch is
// shown. Conversations are never changed in place, so that a message is redrawn only if it is new.

export interface Attachment {
  name: string;
  text: string;
}

export interface ToolCall {
  id: string;
  name: string;
  /** JSON as the model wrote it; perhaps not valid, perhaps not complete. */
  arguments: string;
}

/** What an answer took. Seconds are measured here, tokens are the server's count. */
export interface Stats {
  promptTokens: number;
  cachedTokens: number;
  completionTokens: number;
  firstTokenSeconds: number;
  /** From the first token to the last. */
  seconds: number;
}

export interface Message {
  id: string;
  parent: string | null;
  role: "user" | "assistant" | "tool";
  content: string;
  /** Milliseconds since 1970. */
  created: number;
  attachments?: Attachment[];
  reasoning?: string;
  reasoningSeconds?: number;
  toolCalls?: ToolCall[];
  /** Of a tool's message: the call that it answers. */
  toolCallId?: string;
  model?: string;
  stats?: Stats;
  finish?: string;
  error?: string;
}

export interface Conversation {
  id: string;
  title: string;
  created: number;
  updated: number;
  messages: Message[];
  leaf: string | null;
  /** Overrides the system prompt of the settings; empty means none. */
  systemPrompt?: string;
}

const TITLE_CHARACTERS = 60;

/** Random, also where the page came over plain HTTP (crypto.randomUUID is missing there). */
export function newId(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

export function newConversation(title: string): Conversation {
  const now = Date.now();
  return { id: newId(), title, created: now, updated: now, messages: [], leaf: null };
}

export function titleOf(text: string): string {
  const line = text.trim().split("\n", 1)[0]?.trim() || "New conversation";
  const characters = [...line];
  if (characters.length <= TITLE_CHARACTERS) return line;
  return characters.slice(0, TITLE_CHARACTERS - 1).join("") + "…";
}

/** The messages that are shown, first to last. */
export function shownPath(conversation: Conversation, leaf = conversation.leaf): Message[] {
  const byId = new Map(conversation.messages.map((message) => [message.id, message]));
  const path: Message[] = [];
  for (let at = leaf; at !== null;) {
    const message = byId.get(at);
    if (!message || path.length > conversation.messages.length) break;
    path.push(message);
    at = message.parent;
  }
  return path.reverse();
}

/** The message and its alternatives, oldest first. */
export function siblings(conversation: Conversation, message: Message): Message[] {
  return conversation.messages.filter((other) => other.parent === message.parent);
}

/** `message` is added, and shown as the last one. */
export function append(conversation: Conversation, message: Message): Conversation {
  const messages = [...conversation.messages, message];
  return { ...conversation, messages, leaf: message.id, updated: Date.now() };
}

export function replace(conversation: Conversation, message: Message): Conversation {
  const messages = conversation.messages.map((old) => (old.id === message.id ? message : old));
  return { ...conversation, messages };
}

/** Shows `message`, and of what follows it the newest. */
export function select(conversation: Conversation, message: Message): Conversation {
  let leaf = message.id;
  for (;;) {
    const next = conversation.messages.findLast((other) => other.parent === leaf);
    if (!next) return { ...conversation, leaf };
    leaf = next.id;
  }
}

/** Without `message` and all that follows it; a sibling, else its parent, is shown instead. */
export function remove(conversation: Conversation, message: Message): Conversation {
  const gone = new Set([message.id]);
  // A message comes after its parent.
  for (const other of conversation.messages) {
    if (other.parent !== null && gone.has(other.parent)) gone.add(other.id);
  }
  const messages = conversation.messages.filter((other) => !gone.has(other.id));
  const rest = { ...conversation, messages, updated: Date.now() };
  if (conversation.leaf === null || !gone.has(conversation.leaf)) return rest;
  const sibling = messages.findLast((other) => other.parent === message.parent);
  return sibling ? select(rest, sibling) : { ...rest, leaf: message.parent };
}

/** A new conversation that has the shown messages up to `message`. */
export function branch(conversation: Conversation, message: Message): Conversation {
  const copy = newConversation(conversation.title);
  let parent: string | null = null;
  const messages = shownPath(conversation, message.id).map((old) => {
    const kept: Message = { ...old, id: newId(), parent };
    parent = kept.id;
    return kept;
  });
  const kept = { ...copy, messages, leaf: parent };
  if (conversation.systemPrompt !== undefined) kept.systemPrompt = conversation.systemPrompt;
  return kept;
}

/** Whether every word of `query` is in the title or in a message. */
export function matches(conversation: Conversation, query: string): boolean {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  const texts = [conversation.title, ...conversation.messages.map((message) => message.content)];
  const lower = texts.map((text) => text.toLowerCase());
  return words.every((word) => lower.some((text) => text.includes(word)));
}
