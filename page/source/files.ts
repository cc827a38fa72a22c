// Text files: those that a user attaches, and conversations to and from JSON.

import { type Attachment, type Conversation, type Message, newId } from "./conversation";

export const FILE_BYTES_AT_MOST = 2 ** 20;
const FORMAT = "rtp-llm.conversations";

/** Rejects, with a reason for the user, what is too long or no text. */
export async function readAttachment(file: File): Promise<Attachment> {
  if (file.size > FILE_BYTES_AT_MOST) throw new Error(`${file.name} is longer than 1 MiB.`);
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    if (text.includes("\0")) throw new TypeError("a zero byte");
    return { name: file.name, text };
  } catch {
    throw new Error(`${file.name} is not UTF-8 text.`);
  }
}

/** The message as the model gets it: attached files come after the text, each in a fence. */
export function textWithAttachments(message: Message): string {
  const files = (message.attachments ?? []).map(({ name, text }) => {
    const longest = Math.max(2, ...Array.from(text.matchAll(/`+/g), (run) => run[0].length));
    const fence = "`".repeat(longest + 1);
    return `File ${name}:\n${fence}\n${text}\n${fence}`;
  });
  return [message.content, ...files].filter(Boolean).join("\n\n");
}

export function exportText(conversations: readonly Conversation[]): string {
  return JSON.stringify({ format: FORMAT, version: 1, conversations }, null, 1) + "\n";
}

export function download(name: string, text: string): void {
  const url = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/**
 * The conversations of an exported file, with new ids. Only known fields of the right types are
 * taken over; throws an error for the user if the file has another form.
 */
export function importText(text: string): Conversation[] {
  let content: unknown;
  try {
    content = JSON.parse(text);
  } catch {
    throw new Error("The file is not JSON.");
  }
  const { format, conversations } = record(content);
  if (format !== FORMAT || !Array.isArray(conversations))
    throw new Error("The file has no conversations of this page.");
  return conversations.map(readConversation);
}

function readConversation(value: unknown): Conversation {
  const given = record(value);
  const ids = new Map<string, string>();
  const messages: Message[] = [];
  for (const each of Array.isArray(given.messages) ? given.messages : []) {
    const message = readMessage(record(each), ids);
    if (message) messages.push(message);
  }
  const leaf = ids.get(text(given.leaf)) ?? messages.at(-1)?.id ?? null;
  const now = Date.now();
  const conversation: Conversation = {
    id: newId(),
    title: text(given.title) || "Imported conversation",
    created: number(given.created, now),
    updated: number(given.updated, now),
    messages,
    leaf,
  };
  if (typeof given.systemPrompt === "string") conversation.systemPrompt = given.systemPrompt;
  return conversation;
}

/** `ids`: from those of the file to ours. A message whose parent is unknown is left out. */
function readMessage(given: Record<string, unknown>, ids: Map<string, string>): Message | null {
  const { role, id, parent } = given;
  if (role !== "user" && role !== "assistant" && role !== "tool") return null;
  if (typeof id !== "string" || ids.has(id)) return null;
  const ours = typeof parent === "string" ? ids.get(parent) : null;
  if (ours === undefined) return null;
  const message: Message = {
    id: newId(),
    parent: ours,
    role,
    content: text(given.content),
    created: number(given.created, Date.now()),
  };
  ids.set(id, message.id);
  for (const name of ["reasoning", "toolCallId", "model", "finish", "error"] as const) {
    if (typeof given[name] === "string") message[name] = given[name];
  }
  if (Array.isArray(given.attachments))
    message.attachments = given.attachments
      .map(record)
      .map((file) => ({ name: text(file.name), text: text(file.text) }));
  if (Array.isArray(given.toolCalls))
    message.toolCalls = given.toolCalls.map(record).map((call) => ({
      id: text(call.id),
      name: text(call.name),
      arguments: text(call.arguments),
    }));
  return message;
}

function record(value: unknown): Record<string, unknown> {
  return typeof value === "object" && value !== null ? (value as Record<string, unknown>) : {};
}

function text(value: unknown): string {
  return typeof value === "string" ? value : "";
}

function number(value: unknown, otherwise: number): number {
  return typeof value === "number" && Number.isFinite(value) ? value : otherwise;
}
