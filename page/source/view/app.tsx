// The whole page.

import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import type { Trouble } from "../api";
import type { Message } from "../conversation";
import type { Store } from "../store";
import { Action } from "./action";
import { Composer } from "./composer";
import { Dialogs } from "./dialogs";
import { MessageView } from "./message";
import { Sidebar } from "./sidebar";
import { ToolResults } from "./tool_results";

const NEAR_PIXELS = 80;

export function App({ store }: { store: Store }) {
  const conversation = store.open;
  const running = conversation !== null && store.running.has(conversation.id);
  const title = conversation?.title ?? "New conversation";
  useEffect(() => {
    document.title = `${title} – RTP-LLM`;
  }, [title]);
  return (
    <div class={store.sidebarHidden ? "page narrow" : "page"}>
      <a class="skip" href="#message">
        Skip to the message field
      </a>
      <Sidebar store={store} />
      <div class="shade" onClick={() => store.set("sidebarShown", false)} />
      <main>
        <header>
          <Action icon="menu" label="Conversations" run={() => store.toggleSidebar()} />
          <h1>{title}</h1>
          <Action
            icon="system"
            label="System prompt of this conversation"
            run={() => store.set("dialog", "system prompt")}
          />
          <ModelName store={store} />
        </header>
        {store.trouble && <Banner store={store} trouble={store.trouble} />}
        <Messages store={store} running={running} />
        <Composer store={store} running={running} />
      </main>
      <Notice store={store} />
      <Dialogs store={store} />
    </div>
  );
}

/** Says why the server takes no requests, and how far it has come in loading the model. */
function Banner({ store, trouble }: { store: Store; trouble: Trouble }) {
  const { loading, reason, progress } = trouble;
  return (
    <div class={loading ? "banner" : "banner down"} role="status">
      <p>{reason}</p>
      {loading ? (
        <progress aria-label="Loading" value={progress ?? undefined} />
      ) : (
        <button type="button" onClick={() => void store.connect()}>
          Try again
        </button>
      )}
    </div>
  );
}

/** The model that is asked, with the others to choose from where several are served. */
function ModelName({ store }: { store: Store }) {
  const { trouble, models, model } = store;
  const state = trouble ? (trouble.loading ? "loading" : "down") : "up";
  const words = { up: "ready", loading: "loading", down: "not ready" }[state];
  return (
    <span class="model" title={`The server is ${words}`}>
      <span class={`state ${state}`} aria-label={words} />
      {models.length > 1 ? (
        <select
          aria-label="Model"
          value={model?.id}
          onChange={(event) => store.chooseModel(event.currentTarget.value)}
        >
          {models.map(({ id }) => (
            <option key={id}>{id}</option>
          ))}
        </select>
      ) : (
        (model?.id ?? "")
      )}
    </span>
  );
}

function Messages({ store, running }: { store: Store; running: boolean }) {
  const place = useRef<HTMLDivElement>(null);
  const [atEnd, setAtEnd] = useState(true);
  const { open: conversation, shown } = store;
  const last = shown.at(-1);
  useLayoutEffect(() => {
    if (atEnd && place.current) place.current.scrollTop = place.current.scrollHeight;
  });
  useLayoutEffect(() => setAtEnd(true), [store.openId, last?.role === "user" ? last.id : null]);
  const onScroll = () => {
    const box = place.current;
    if (box) setAtEnd(box.scrollHeight - box.scrollTop - box.clientHeight < NEAR_PIXELS);
  };
  if (!conversation || !shown.length) return <Welcome store={store} />;
  return (
    <div class="around">
      <div
        ref={place}
        class="messages"
        role="log"
        aria-label="Messages"
        aria-busy={running}
        tabIndex={0}
        onScroll={onScroll}
      >
        {shown.map((message) => (
          <MessageView
            key={message.id}
            store={store}
            conversation={conversation}
            message={message}
            running={running && message === last}
            busy={running}
          />
        ))}
        {!running && <ToolResults key={last?.id} store={store} conversation={conversation} />}
      </div>
      {!atEnd && (
        <div class="to-end">
          <Action icon="down" label="To the end" run={() => setAtEnd(true)} />
        </div>
      )}
      <span class="hidden" role="status">
        {spoken(last, running)}
      </span>
    </div>
  );
}

function spoken(last: Message | undefined, running: boolean): string {
  if (running) return "The model is answering.";
  return last?.role === "assistant" ? "The answer is complete." : "";
}

const EXAMPLES = [
  "What is 12 + 30?",
  "Explain in three sentences how rainbows form.",
  "Write a Python function that reverses the words of a sentence.",
];

function Welcome({ store }: { store: Store }) {
  const length = store.model?.max_model_len;
  return (
    <div class="welcome">
      <h2>What would you like to know?</h2>
      <p>
        {store.model && <strong>{store.model.id}</strong>}
        {length && <>, with a context of {length.toLocaleString("en")} tokens</>}
        {store.model && ". "}
        Conversations are kept in this browser only.
      </p>
      <ul class="examples" aria-label="Examples">
        {EXAMPLES.map((question) => (
          <li key={question}>
            <button type="button" onClick={() => store.send(question, [])}>
              {question}
            </button>
          </li>
        ))}
      </ul>
    </div>
  );
}

function Notice({ store }: { store: Store }) {
  const { notice } = store;
  useEffect(() => {
    if (!notice) return undefined;
    const timer = setTimeout(() => store.set("notice", ""), 6000);
    return () => clearTimeout(timer);
  }, [notice]);
  return (
    <div class="notices" role="status">
      {notice && (
        <p>
          {notice}
          <Action icon="close" label="Close" run={() => store.set("notice", "")} />
        </p>
      )}
    </div>
  );
}
