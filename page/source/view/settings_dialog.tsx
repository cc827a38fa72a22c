// The settings dialog.

import { useState } from "preact/hooks";
import { SAMPLING, type Settings, problems } from "../settings";
import type { Store } from "../store";
import { Field, Modal } from "./modal";

export function SettingsDialog({ store, close }: { store: Store; close(): void }) {
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
        <JsonField
          {...{ settings, change, wrong }}
          name="jsonSchema"
          label="JSON schema"
          hint="Answers obey it. Leave it empty for text."
        />
        <JsonField
          {...{ settings, change, wrong }}
          name="tools"
          label="Tools"
          hint="JSON, as in the chat API. You give the results of calls."
        />
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
  return (
    <>
      <Field label="System prompt" hint="For new conversations; each can have its own.">
        <textarea
          rows={3}
          value={settings.systemPrompt}
          onInput={(event) => change({ systemPrompt: event.currentTarget.value })}
        />
      </Field>
      <div class="row">
        {SAMPLING.map(({ name, label }) => (
          <Field key={name} label={label} problem={wrong[name]}>
            <input
              inputMode="decimal"
              placeholder="default"
              value={settings[name]}
              onInput={(event) => change({ [name]: event.currentTarget.value })}
            />
          </Field>
        ))}
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

interface JsonFieldProps extends Fields {
  name: "tools" | "jsonSchema";
  label: string;
  hint: string;
}

function JsonField({ name, label, hint, settings, change, wrong }: JsonFieldProps) {
  return (
    <Field label={label} hint={hint} problem={wrong[name]}>
      <textarea
        class="mono"
        rows={3}
        spellcheck={false}
        value={settings[name]}
        onInput={(event) => change({ [name]: event.currentTarget.value })}
      />
    </Field>
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
