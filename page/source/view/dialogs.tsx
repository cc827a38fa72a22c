// The dialog that is open, if any.

import { useState } from "preact/hooks";
import { SHORTCUTS } from "../shortcuts";
import type { Store } from "../store";
import { Field, Modal } from "./modal";
import { SettingsDialog } from "./settings_dialog";

export function Dialogs({ store }: { store: Store }) {
  const { dialog } = store;
  const close = () => store.set("dialog", null);
  if (dialog === "settings") return <SettingsDialog store={store} close={close} />;
  if (dialog === "shortcuts") return <ShortcutsDialog close={close} />;
  if (dialog === "system prompt") return <SystemPromptDialog store={store} close={close} />;
  if (!dialog) return null;
  const yes = () => {
    close();
    dialog.yes();
  };
  return (
    <Modal title={dialog.question} close={close}>
      <div class="buttons">
        <button type="button" onClick={close}>
          Cancel
        </button>
        <button type="button" class="danger" onClick={yes}>
          {dialog.action}
        </button>
      </div>
    </Modal>
  );
}

function ShortcutsDialog({ close }: { close(): void }) {
  return (
    <Modal title="Keyboard shortcuts" close={close}>
      <dl class="shortcuts">
        {SHORTCUTS.map(([keys, words]) => (
          <div key={keys}>
            <dt>{words}</dt>
            <dd>
              <kbd>{keys}</kbd>
            </dd>
          </div>
        ))}
      </dl>
      <div class="buttons">
        <button type="button" class="primary" onClick={close}>
          Close
        </button>
      </div>
    </Modal>
  );
}

function SystemPromptDialog({ store, close }: { store: Store; close(): void }) {
  const [prompt, setPrompt] = useState(store.systemPrompt);
  return (
    <Modal title="System prompt" close={close}>
      <form
        class="settings"
        onSubmit={(event) => {
          event.preventDefault();
          store.setSystemPrompt(prompt.trim());
        }}
      >
        <Field
          label="For this conversation"
          hint="The settings have the one that new conversations begin with."
        >
          <textarea
            rows={6}
            autofocus
            value={prompt}
            onInput={(event) => setPrompt(event.currentTarget.value)}
          />
        </Field>
        <div class="buttons">
          <button type="button" onClick={close}>
            Cancel
          </button>
          <button type="submit" class="primary">
            Save
          </button>
        </div>
      </form>
    </Modal>
  );
}
