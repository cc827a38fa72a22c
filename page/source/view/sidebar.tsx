// The list of conversations: search, open, rename, export, delete, import.

import { useEffect, useRef, useState } from "preact/hooks";
import type { Conversation } from "../conversation";
import type { Store } from "../store";
import { Action } from "./action";
import { Icon } from "./icon";

const DAY_MILLISECONDS = 86_400_000;

export function Sidebar({ store }: { store: Store }) {
  const picker = useRef<HTMLInputElement>(null);
  const found = store.found;
  return (
    <nav id="sidebar" class={store.sidebarShown ? "shown" : ""} aria-label="Conversations">
      <div class="top">
        <button type="button" class="wide" onClick={() => store.openConversation(null)}>
          <Icon name="new" /> New conversation
        </button>
        <label class="search">
          <Icon name="search" />
          <input
            id="search"
            type="search"
            placeholder="Search"
            aria-label="Search conversations"
            value={store.query}
            onInput={(event) => store.set("query", event.currentTarget.value)}
          />
        </label>
      </div>
      <div class="list">
        {groups(found).map(([name, group]) => (
          <section key={name}>
            <h2>{name}</h2>
            <ul>
              {group.map((conversation) => (
                <Row key={conversation.id} store={store} conversation={conversation} />
              ))}
            </ul>
          </section>
        ))}
        {!found.length && (
          <p class="empty">
            {store.query ? "Nothing found." : "Conversations will be listed here."}
          </p>
        )}
      </div>
      <div class="bottom">
        <Action
          icon="import"
          label="Import conversations"
          caption="Import"
          run={() => picker.current?.click()}
        />
        <Action
          icon="export"
          label="Export all conversations"
          caption="Export"
          run={() => store.export([...store.conversations.values()])}
          disabled={!store.conversations.size}
        />
        <Action
          icon="settings"
          label="Settings"
          caption="Settings"
          run={() => store.set("dialog", "settings")}
        />
        <Action
          icon="keyboard"
          label="Keyboard shortcuts"
          caption="Shortcuts"
          run={() => store.set("dialog", "shortcuts")}
        />
        <input
          ref={picker}
          type="file"
          accept=".json,application/json"
          hidden
          aria-label="Exported conversations"
          onChange={(event) => {
            const file = event.currentTarget.files?.[0];
            if (file) void store.import(file);
            event.currentTarget.value = "";
          }}
        />
      </div>
    </nav>
  );
}

function Row({ store, conversation }: { store: Store; conversation: Conversation }) {
  const [renaming, setRenaming] = useState(false);
  const open = store.openId === conversation.id;
  if (renaming)
    return <Rename store={store} conversation={conversation} close={() => setRenaming(false)} />;
  return (
    <li class={open ? "open" : undefined}>
      <button
        type="button"
        class="title"
        aria-current={open ? "page" : undefined}
        title={conversation.title}
        onClick={() => store.openConversation(conversation.id)}
        onDblClick={() => setRenaming(true)}
      >
        {store.running.has(conversation.id) && <span class="dot" aria-label="Running" />}
        {conversation.title}
      </button>
      <span class="actions">
        <Action icon="edit" label="Rename conversation" run={() => setRenaming(true)} />
        <Action
          icon="export"
          label="Export conversation"
          run={() => store.export([conversation])}
        />
        <Action
          icon="trash"
          label="Delete conversation"
          run={() => store.askToDelete(conversation)}
        />
      </span>
    </li>
  );
}

interface RenameProps {
  store: Store;
  conversation: Conversation;
  close(): void;
}

function Rename({ store, conversation, close }: RenameProps) {
  const field = useRef<HTMLInputElement>(null);
  useEffect(() => field.current?.select(), []);
  const done = () => {
    store.rename(conversation, field.current?.value ?? "");
    close();
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key === "Enter") done();
    else if (event.key === "Escape") close();
    else return;
    event.stopPropagation();
  };
  return (
    <li>
      <input
        ref={field}
        aria-label="Title"
        defaultValue={conversation.title}
        onKeyDown={onKeyDown}
        onBlur={done}
      />
    </li>
  );
}

function groups(conversations: Conversation[]): [string, Conversation[]][] {
  const today = new Date().setHours(0, 0, 0, 0);
  const names = ["Today", "Yesterday", "Earlier"] as const;
  const day = ({ updated }: Conversation) =>
    updated >= today ? 0 : updated >= today - DAY_MILLISECONDS ? 1 : 2;
  return names
    .map((name, index): [string, Conversation[]] => [
      name,
      conversations.filter((conversation) => day(conversation) === index),
    ])
    .filter(([, group]) => group.length);
}
