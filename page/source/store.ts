// The page's state, and what can be done to it. Views read it and are told when it changes.

import * as api from "./api";
import {
  type Attachment,
  type Conversation,
  type Message,
  append,
  branch,
  matches,
  newConversation,
  newId,
  remove,
  replace,
  select,
  shownPath,
  titleOf,
} from "./conversation";
import { Database } from "./database";
import { AnswerBuilder } from "./events";
import { download, exportText, importText } from "./files";
import { type Settings, loadKey, loadSettings, saveSettings } from "./settings";

export type Dialog =
  "settings" | "shortcuts" | "system prompt" | { question: string; action: string; yes(): void };

const SAVE_MILLISECONDS = 2000;
const HEALTH_MILLISECONDS = 3000;

export class Store {
  conversations = new Map<string, Conversation>();
  /** The open conversation; null: a new one. */
  openId: string | null = null;
  query = "";
  /** The system prompt of the next new conversation; null: that of the settings. */
  private newSystemPrompt: string | null = null;
  /** By conversation: what stops its answer. */
  readonly running = new Map<string, AbortController>();
  settings: Settings = loadSettings();
  key = loadKey();
  models: api.Model[] = [];
  /** Why the server takes no requests; null while it does. */
  trouble: api.Trouble | null = null;
  needsKey = false;
  dialog: Dialog | null = null;
  notice = "";
  /** On a narrow screen, where it lies over the conversation. */
  sidebarShown = false;
  /** On a wide one, where it stands beside it. */
  sidebarHidden = false;

  private database: Database | null = null;
  private readonly channel = new BroadcastChannel("rtp-llm");
  private waiting = false;
  private again = 0;
  private listener: () => void = () => undefined;

  get open(): Conversation | null {
    return this.openId === null ? null : (this.conversations.get(this.openId) ?? null);
  }

  /** The messages of the open conversation that are shown. */
  get shown(): Message[] {
    return this.open ? shownPath(this.open) : [];
  }

  /** What the model is told before the open conversation, or a new one. */
  get systemPrompt(): string {
    const own = this.open ? this.open.systemPrompt : this.newSystemPrompt;
    return own ?? this.settings.systemPrompt;
  }

  /** The model that is asked. */
  get model(): api.Model | null {
    const wanted = this.settings.model;
    return this.models.find((model) => model.id === wanted) ?? this.models[0] ?? null;
  }

  /** Newest first, those that fit the search. */
  get found(): Conversation[] {
    return [...this.conversations.values()]
      .filter((conversation) => matches(conversation, this.query))
      .sort((one, other) => other.updated - one.updated);
  }

  /** `listener` is called once for all changes of a frame. */
  async start(listener: () => void): Promise<void> {
    this.listener = listener;
    this.applyTheme();
    this.channel.onmessage = (event) => void this.reload(String(event.data));
    void this.connect();
    this.database = await Database.open();
    for (const each of await this.database.all()) this.conversations.set(each.id, each);
    if (!this.database.lasting) this.notice = "This browser keeps no data: export what matters.";
    this.changed();
  }

  changed(): void {
    if (this.waiting) return;
    this.waiting = true;
    const draw = () => {
      this.waiting = false;
      this.listener();
    };
    // Hidden tabs have no frames.
    if (document.hidden) setTimeout(draw, 100);
    else requestAnimationFrame(draw);
  }

  set<Name extends "query" | "dialog" | "notice" | "sidebarShown">(
    name: Name,
    value: Store[Name],
  ): void {
    (this as Store)[name] = value;
    this.changed();
  }

  toggleSidebar(): void {
    if (isNarrow()) this.sidebarShown = !this.sidebarShown;
    else this.sidebarHidden = !this.sidebarHidden;
    this.changed();
  }

  showSidebar(): void {
    this.sidebarShown = isNarrow();
    this.sidebarHidden = false;
    this.changed();
  }

  escape(): void {
    if (this.sidebarShown) this.set("sidebarShown", false);
    else this.stop();
  }

  // -- the server ------------------------------------------------------------------------------

  /** Asks until the server is ready, then for its models. */
  async connect(): Promise<void> {
    this.trouble = await api.health();
    try {
      this.models = await api.models(this.key);
      this.needsKey = false;
    } catch (error) {
      this.needsKey = error instanceof api.ServerError && error.status === 401;
      if (this.needsKey) this.dialog = "settings";
    }
    this.changed();
    const complete = this.model?.max_model_len || this.needsKey;
    clearTimeout(this.again);
    if (this.trouble !== null || !complete)
      this.again = window.setTimeout(() => void this.connect(), HEALTH_MILLISECONDS);
  }

  applySettings(settings: Settings, key: string): void {
    this.settings = settings;
    this.key = key;
    saveSettings(settings, key);
    this.applyTheme();
    this.dialog = null;
    void this.connect();
  }

  chooseModel(model: string): void {
    this.settings = { ...this.settings, model };
    saveSettings(this.settings, this.key);
    this.changed();
  }

  private applyTheme(): void {
    document.documentElement.dataset.theme = this.settings.theme;
  }

  // -- conversations ---------------------------------------------------------------------------

  openConversation(id: string | null): void {
    this.openId = id;
    this.sidebarShown = false;
    this.changed();
  }

  /** `prompt` for the open conversation alone, or for a new one. */
  setSystemPrompt(prompt: string): void {
    this.dialog = null;
    if (this.open) this.keep({ ...this.open, systemPrompt: prompt });
    else this.newSystemPrompt = prompt;
    this.changed();
  }

  rename(conversation: Conversation, title: string): void {
    if (title.trim()) this.keep({ ...conversation, title: title.trim() });
  }

  askToDelete(conversation: Conversation): void {
    const yes = () => {
      this.running.get(conversation.id)?.abort();
      this.conversations.delete(conversation.id);
      if (this.openId === conversation.id) this.openId = null;
      void this.database?.remove(conversation.id).then(() => this.tell(conversation.id));
      this.changed();
    };
    this.set("dialog", { question: `Delete “${conversation.title}”?`, action: "Delete", yes });
  }

  export(conversations: readonly Conversation[]): void {
    const day = new Date().toISOString().slice(0, 10);
    download(`conversations-${day}.json`, exportText(conversations));
  }

  async import(file: File): Promise<void> {
    try {
      const imported = importText(await file.text());
      for (const each of imported) this.keep(each);
      this.notice = `Imported ${imported.length} conversation${imported.length === 1 ? "" : "s"}.`;
    } catch (error) {
      this.notice = (error as Error).message;
    }
    this.changed();
  }

  // -- messages --------------------------------------------------------------------------------

  send(content: string, attachments: Attachment[]): void {
    const title = titleOf(content || (attachments[0]?.name ?? ""));
    const conversation = this.open ?? this.begin(title);
    const message = newMessage("user", conversation.leaf, content);
    if (attachments.length) message.attachments = attachments;
    this.openId = conversation.id;
    this.keep(append(conversation, message));
    void this.answer(conversation.id);
  }

  private begin(title: string): Conversation {
    const conversation = newConversation(title);
    if (this.newSystemPrompt !== null) conversation.systemPrompt = this.newSystemPrompt;
    this.newSystemPrompt = null;
    return conversation;
  }

  /** Another branch with `content` in place of the message's; a question is answered anew. */
  edit(conversation: Conversation, message: Message, content: string): void {
    if (this.running.has(conversation.id)) return;
    const edited: Message = { ...message, id: newId(), content, created: Date.now() };
    this.keep(append(conversation, edited));
    if (message.role === "user") void this.answer(conversation.id);
  }

  regenerate(conversation: Conversation, message: Message): void {
    this.keep({ ...conversation, leaf: message.parent });
    void this.answer(conversation.id);
  }

  /** Lets the model go on with an answer that was stopped, or ended at the length limit. */
  resume(conversation: Conversation, message: Message): void {
    if (this.running.has(conversation.id)) return;
    const { finish: _finish, error: _error, ...rest } = message;
    this.keep(select(replace(conversation, rest), rest));
    void this.answer(conversation.id, rest);
  }

  show(conversation: Conversation, message: Message): void {
    this.keep(select(conversation, message));
  }

  branchFrom(conversation: Conversation, message: Message): void {
    const copy = branch(conversation, message);
    this.keep(copy);
    this.openConversation(copy.id);
  }

  askToDeleteMessage(conversation: Conversation, message: Message): void {
    const yes = () => this.keep(remove(conversation, message));
    const question = "Delete this message and all that follows it?";
    this.set("dialog", { question, action: "Delete", yes });
  }

  /** `results`: by the id of the call. */
  sendResults(conversation: Conversation, results: ReadonlyMap<string, string>): void {
    let next = conversation;
    for (const [toolCallId, content] of results)
      next = append(next, { ...newMessage("tool", next.leaf, content), toolCallId });
    this.keep(next);
    void this.answer(conversation.id);
  }

  stop(): void {
    if (this.openId !== null) this.running.get(this.openId)?.abort();
  }

  /** Lets the model answer the last message that is shown, or go on with `begun`. */
  private async answer(id: string, begun?: Message): Promise<void> {
    const conversation = this.conversations.get(id);
    if (!conversation || this.running.has(id)) return;
    const path = shownPath(conversation);
    const stopper = new AbortController();
    this.running.set(id, stopper);
    let message = begun ?? newMessage("assistant", conversation.leaf, "");
    if (!begun) this.keep(append(conversation, message));
    const grow = (next: Message) => {
      message = next;
      this.keep(replace(this.conversations.get(id) ?? conversation, message), SAVE_MILLISECONDS);
    };
    try {
      const builder = new AnswerBuilder(message, performance.now());
      const { key } = this;
      const model = this.model?.id ?? this.settings.model;
      const systemPrompt = conversation.systemPrompt ?? this.settings.systemPrompt;
      const settings = { ...this.settings, systemPrompt };
      for await (const chunk of api.chat(path, settings, model, key, stopper.signal)) {
        if (stopper.signal.aborted) break;
        grow(builder.add(chunk, performance.now()));
      }
    } catch (error) {
      if (!stopper.signal.aborted) grow(this.failed(message, error as Error));
    }
    if (stopper.signal.aborted) grow({ ...message, finish: "stopped" });
    this.running.delete(id);
    const last = this.conversations.get(id);
    if (last) this.keep(last);
  }

  private failed(message: Message, error: Error): Message {
    const status = error instanceof api.ServerError ? error.status : 503;
    if (status === 401) {
      this.needsKey = true;
      this.dialog = "settings";
    }
    if (status >= 500) void this.connect();
    return { ...message, error: error.message };
  }

  // -- keeping ---------------------------------------------------------------------------------

  private readonly saves = new Map<string, number>();

  /** Shows the conversation at once and stores it after `delay`; a deleted one stays deleted. */
  private keep(conversation: Conversation, delay = 0): void {
    const { id } = conversation;
    if (delay && !this.conversations.has(id)) return;
    this.conversations.set(id, conversation);
    this.changed();
    if (delay && this.saves.has(id)) return;
    clearTimeout(this.saves.get(id));
    this.saves.set(
      id,
      window.setTimeout(() => void this.save(id), delay),
    );
  }

  private async save(id: string): Promise<void> {
    this.saves.delete(id);
    const conversation = this.conversations.get(id);
    if (!conversation) return;
    try {
      await this.database?.put(conversation);
      this.tell(id);
    } catch {
      this.set("notice", "The conversation could not be stored; export what matters.");
    }
  }

  private tell(id: string): void {
    this.channel.postMessage(id);
  }

  /** Another tab has changed a conversation. */
  private async reload(id: string): Promise<void> {
    if (this.running.has(id) || this.saves.has(id)) return;
    const stored = await this.database?.one(id);
    if (stored) this.conversations.set(id, stored);
    else this.conversations.delete(id);
    this.changed();
  }
}

function isNarrow(): boolean {
  return matchMedia("(max-width: 48rem)").matches;
}

function newMessage(role: Message["role"], parent: string | null, content: string): Message {
  return { id: newId(), parent, role, content, created: Date.now() };
}
