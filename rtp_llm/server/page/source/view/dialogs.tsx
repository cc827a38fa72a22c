// Settings, shortcuts and questions, as modal dialogs of the browser: it keeps the focus inside.

import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { type Settings, problems } from "../settings";
import { SHORTCUTS } from "../shortcuts";
import type { Store } from "../store";

export function Dialogs({ store }: { store: Store }) {
  const { dialog } = store;
  const close = () => store.set("dialog", null);
  if (dialog === "settings") return <SettingsDialog store={store} close={close} />;
  if (dialog === "shortcuts") return <ShortcutsDialog close={close} />;
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

interface ModalProps {
  title: string;
  close(): void;
  children: ComponentChildren;
}

function Modal({ title, close, children }: ModalProps) {
  const place = useRef<HTMLDialogElement>(null);
  useEffect(() => place.current?.showModal(), []);
  return (
    <dialog
      ref={place}
      aria-label={title}
      onClose={close}
      onClick={(event) => event.target === place.current && close()}
    >
      <div class="inside">
        <h2>{title}</h2>
        {children}
      </div>
    </dialog>
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

function SettingsDialog({ store, close }: { store: Store; close(): void }) {
  const [settings, setSettings] = useState(store.settings);
  const [key, setKey] = useState(store.key);
  const wrong = problems(settings);
  const change = (part: Partial<Settings>) => setSettings({ ...settings, ...part });
  return (
    <Modal title="Settings" close={close}>
      <form
        class="settings"
        onSubmit={(event) => {
          event.preventDefault();
          if (!Object.keys(wrong).length) store.applySettings(settings, key.trim());
        }}
      >
        {store.needsKey && (
          <p class="error" role="alert">
            {store.key ? "The server does not accept this key." : "The server asks for an API key."}
          </p>
        )}
        <Access {...{ settings, change, wrong }} store={store} value={key} setKey={setKey} />
        <Sampling {...{ settings, change, wrong }} />
        <Field
          label="Tools"
          hint="JSON, as in the chat API. You give the results of calls."
          problem={wrong.tools}
        >
          <textarea
            class="mono"
            rows={3}
            spellcheck={false}
            value={settings.tools}
            onInput={(event) => change({ tools: event.currentTarget.value })}
          />
        </Field>
        <div class="buttons">
          <button type="button" onClick={close}>
            Cancel
          </button>
          <button type="submit" class="primary" disabled={Object.keys(wrong).length > 0}>
            Save
          </button>
        </div>
      </form>
    </Modal>
  );
}

interface Fields {
  settings: Settings;
  change(part: Partial<Settings>): void;
  wrong: ReturnType<typeof problems>;
}

interface AccessProps extends Fields {
  store: Store;
  value: string;
  setKey(key: string): void;
}

function Access({ settings, change, store, value, setKey }: AccessProps) {
  return (
    <>
      <div class="row">
        <Field label="API key">
          <input
            type="password"
            autocomplete="off"
            autofocus={store.needsKey}
            value={value}
            onInput={(event) => setKey(event.currentTarget.value)}
          />
        </Field>
        <Select
          label="Model"
          value={settings.model || (store.model?.id ?? "")}
          options={store.models.map((model) => [model.id, model.id])}
          set={(model) => change({ model })}
        />
        <Select
          label="Theme"
          value={settings.theme}
          options={[
            ["auto", "system"],
            ["light", "light"],
            ["dark", "dark"],
          ]}
          set={(theme) => change({ theme: theme as Settings["theme"] })}
        />
      </div>
      <label class="check">
        <input
          type="checkbox"
          checked={settings.rememberKey}
          onChange={(event) => change({ rememberKey: event.currentTarget.checked })}
        />
        Keep the key in this browser after the tab is closed
      </label>
    </>
  );
}

function Sampling({ settings, change, wrong }: Fields) {
  const number = (name: "temperature" | "topP" | "maxTokens", label: string) => (
    <Field label={label} problem={wrong[name]}>
      <input
        inputMode="decimal"
        placeholder="default"
        value={settings[name]}
        onInput={(event) => change({ [name]: event.currentTarget.value })}
      />
    </Field>
  );
  return (
    <>
      <Field label="System prompt">
        <textarea
          rows={3}
          value={settings.systemPrompt}
          onInput={(event) => change({ systemPrompt: event.currentTarget.value })}
        />
      </Field>
      <div class="row">
        {number("temperature", "Temperature")}
        {number("topP", "Top-p")}
        {number("maxTokens", "Max tokens")}
        <Select
          label="Thinking"
          value={settings.thinking}
          options={[
            ["default", "default"],
            ["on", "on"],
            ["off", "off"],
          ]}
          set={(thinking) => change({ thinking: thinking as Settings["thinking"] })}
        />
      </div>
    </>
  );
}

interface FieldProps {
  label: string;
  hint?: string;
  problem?: string | undefined;
  children: ComponentChildren;
}

function Field({ label, hint, problem, children }: FieldProps) {
  return (
    <label class="field">
      <span>{label}</span>
      {children}
      {problem ? (
        <small class="problem" role="alert">
          {problem}
        </small>
      ) : (
        hint && <small>{hint}</small>
      )}
    </label>
  );
}

interface SelectProps {
  label: string;
  value: string;
  options: [string, string][];
  set(value: string): void;
}

function Select({ label, value, options, set }: SelectProps) {
  return (
    <Field label={label}>
      <select value={value} onChange={(event) => set(event.currentTarget.value)}>
        {options.map(([name, words]) => (
          <option key={name} value={name}>
            {words}
          </option>
        ))}
      </select>
    </Field>
  );
}
