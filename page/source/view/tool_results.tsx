// After calls of tools: the page runs none, so the user says what each of them gave.

import { useState } from "preact/hooks";
import type { Conversation } from "../conversation";
import type { Store } from "../store";
import { CallArguments } from "./call_arguments";

export function ToolResults({ store, conversation }: { store: Store; conversation: Conversation }) {
  const [results, setResults] = useState<ReadonlyMap<string, string>>(new Map());
  const last = store.shown.at(-1);
  const calls = (last?.role === "assistant" && !last.error && last.toolCalls) || [];
  if (!calls.length) return null;
  return (
    <form
      class="results"
      onSubmit={(event) => {
        event.preventDefault();
        const all = new Map(calls.map((call) => [call.id, results.get(call.id) ?? ""]));
        store.sendResults(conversation, all);
      }}
    >
      {calls.map((call) => (
        <div key={call.id} class="call">
          <p>
            <code>{call.name}</code> was called with
          </p>
          <CallArguments call={call} />
          <label class="field">
            <span>Result</span>
            <textarea
              rows={2}
              class="mono"
              value={results.get(call.id) ?? ""}
              onInput={(event) =>
                setResults(new Map(results).set(call.id, event.currentTarget.value))
              }
            />
          </label>
        </div>
      ))}
      <div class="buttons">
        <button type="submit" class="primary">
          Send {calls.length === 1 ? "result" : "results"}
        </button>
      </div>
    </form>
  );
}
