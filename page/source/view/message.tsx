// One message: its text, what was thought and called, and what can be done with it.

import { Component } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { type Conversation, type Message, siblings } from "../conversation";
import type { Store } from "../store";
import { Action } from "./action";
import { CallArguments } from "./call_arguments";
import { CopyButton } from "./code";
import { Icon } from "./icon";
import { Markdown } from "./markdown";

// Tokens that came together say nothing of the speed.
const LEAST_SECONDS = 0.02;

interface Props {
  store: Store;
  conversation: Conversation;
  message: Message;
  /** The message is growing. */
  running: boolean;
  /** Some message of the conversation is. */
  busy: boolean;
}

/** Drawn again only if it, or its place among its siblings, has changed. */
export class MessageView extends Component<Props, { editing: boolean }> {
  override state = { editing: false };

  override shouldComponentUpdate(next: Props, state: { editing: boolean }): boolean {
    const { message, running, busy, conversation } = this.props;
    return (
      state.editing !== this.state.editing ||
      next.message !== message ||
      next.running !== running ||
      next.busy !== busy ||
      next.conversation.messages.length !== conversation.messages.length
    );
  }

  override render() {
    const { message } = this.props;
    const name = { user: "You", assistant: "Answer", tool: "Tool result" }[message.role];
    const edit = (editing: boolean) => this.setState({ editing });
    return (
      <article class={`message ${message.role}`} aria-label={name} data-id={message.id}>
        {this.state.editing ? (
          <Editor {...this.props} close={() => edit(false)} />
        ) : (
          <Body {...this.props} />
        )}
        {!this.state.editing && <Footer {...this.props} edit={() => edit(true)} />}
      </article>
    );
  }
}

function Body({ message, running, conversation }: Props) {
  if (message.role === "user")
    return (
      <div class="bubble">
        {message.content && <div class="typed">{message.content}</div>}
        {message.attachments?.map((file, index) => (
          <details key={index} class="fold">
            <summary>
              <Icon name="attach" /> {file.name} <small>{file.text.length} characters</small>
            </summary>
            <pre tabIndex={0}>{file.text}</pre>
          </details>
        ))}
      </div>
    );
  if (message.role === "tool") return <ToolResult message={message} conversation={conversation} />;
  const waiting = running && !message.content && !message.reasoning && !message.toolCalls;
  return (
    <>
      {message.reasoning && <Reasoning message={message} running={running} />}
      {message.content && <Markdown text={message.content} growing={running} />}
      {message.toolCalls?.map((call, index) => (
        <details key={index} class="fold call">
          <summary>
            Called <code>{call.name}</code>
          </summary>
          <CallArguments call={call} />
        </details>
      ))}
      {waiting && <div class="waiting" aria-label="Waiting for the first token" />}
      {message.error && (
        <p class="error" role="alert">
          {message.error}
        </p>
      )}
    </>
  );
}

function Reasoning({ message, running }: { message: Message; running: boolean }) {
  const thinking = running && !message.content && !message.toolCalls;
  return (
    <details class="fold reasoning">
      <summary>{thinking ? "Thinking…" : thoughtFor(message.reasoningSeconds ?? 0)}</summary>
      <div class="typed">{message.reasoning?.trim()}</div>
    </details>
  );
}

function thoughtFor(seconds: number): string {
  if (seconds < 0.1) return "Thought";
  return `Thought for ${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
}

function ToolResult({ message, conversation }: { message: Message; conversation: Conversation }) {
  const calls = conversation.messages.flatMap((other) => other.toolCalls ?? []);
  const name = calls.find((call) => call.id === message.toolCallId)?.name ?? "a tool";
  return (
    <details class="fold">
      <summary>
        Result of <code>{name}</code>
      </summary>
      <pre tabIndex={0}>{message.content}</pre>
    </details>
  );
}

function Footer({ store, conversation, message, running, busy, edit }: Props & { edit(): void }) {
  if (running) return <footer>{message.stats && <StatsLine message={message} />}</footer>;
  const regenerate = () => store.regenerate(conversation, message);
  const resume = () => store.resume(conversation, message);
  const branchFrom = () => store.branchFrom(conversation, message);
  const remove = () => store.askToDeleteMessage(conversation, message);
  return (
    <footer>
      <Siblings store={store} conversation={conversation} message={message} busy={busy} />
      <CopyButton text={message.content} label="Copy message" />
      <Action icon="edit" label="Edit message" run={edit} disabled={busy} />
      {message.role === "assistant" && (
        <Action icon="regenerate" label="Try again" run={regenerate} disabled={busy} />
      )}
      {mayGoOn(message) && (
        <Action icon="continue" label="Continue answer" run={resume} disabled={busy} />
      )}
      <Action icon="branch" label="Branch into a new conversation" run={branchFrom} />
      <Action icon="trash" label="Delete message" run={remove} disabled={busy} />
      {message.role === "assistant" && <StatsLine message={message} />}
    </footer>
  );
}

function mayGoOn({ role, content, finish, toolCalls }: Message): boolean {
  const cut = finish === "stopped" || finish === "length";
  return role === "assistant" && cut && content !== "" && !toolCalls?.length;
}

function Siblings({ store, conversation, message, busy }: Omit<Props, "running">) {
  const all = siblings(conversation, message);
  if (all.length < 2) return null;
  const at = all.indexOf(message);
  const go = (step: number) => {
    const other = all[at + step];
    if (other) store.show(conversation, other);
  };
  return (
    <span class="siblings">
      <Action icon="left" label="Previous version" run={() => go(-1)} disabled={busy || at === 0} />
      <span>
        {at + 1} / {all.length}
      </span>
      <Action
        icon="right"
        label="Next version"
        run={() => go(1)}
        disabled={busy || at === all.length - 1}
      />
    </span>
  );
}

function StatsLine({ message }: { message: Message }) {
  const { stats } = message;
  const parts: string[] = [];
  if (stats) {
    const rate = (stats.completionTokens - 1) / stats.seconds;
    if (stats.seconds >= LEAST_SECONDS && rate > 0)
      parts.push(`${rate.toFixed(rate < 100 ? 1 : 0)} tokens/s`);
    parts.push(`${stats.completionTokens} tokens`);
    parts.push(`first after ${stats.firstTokenSeconds.toFixed(2)} s`);
  }
  if (message.finish === "length") parts.push("ended at the length limit");
  if (message.finish === "stopped") parts.push("stopped");
  const title =
    stats && `Prompt: ${stats.promptTokens} tokens, ${stats.cachedTokens} of them cached`;
  return (
    <span class="stats" title={title}>
      {parts.join(" · ")}
    </span>
  );
}

function Editor({ store, conversation, message, close }: Props & { close(): void }) {
  const [text, setText] = useState(message.content);
  const area = useRef<HTMLTextAreaElement>(null);
  useEffect(() => area.current?.focus(), []);
  const done = () => {
    close();
    if (text.trim() && text !== message.content) store.edit(conversation, message, text);
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key === "Escape") close();
    else if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) done();
    else return;
    event.stopPropagation();
  };
  return (
    <form
      class="editor"
      onSubmit={(event) => {
        event.preventDefault();
        done();
      }}
    >
      <textarea
        ref={area}
        aria-label="Message"
        rows={Math.min(16, text.split("\n").length + 1)}
        value={text}
        onInput={(event) => setText(event.currentTarget.value)}
        onKeyDown={onKeyDown}
      />
      <div class="buttons">
        <button type="button" onClick={close}>
          Cancel
        </button>
        <button type="submit" class="primary">
          {message.role === "user" ? "Send" : "Save"}
        </button>
      </div>
    </form>
  );
}
