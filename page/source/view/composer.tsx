// Where a message is written: text, attached files, send or stop.

import { useEffect, useRef, useState } from "preact/hooks";
import type { Attachment } from "../conversation";
import { readAttachment } from "../files";
import type { Store } from "../store";
import { Action } from "./action";
import { Icon } from "./icon";

const PASTED_CHARACTERS_AT_MOST = 8000;

export function Composer({ store, running }: { store: Store; running: boolean }) {
  const [text, setText] = useState("");
  const [files, setFiles] = useState<Attachment[]>([]);
  const area = useRef<HTMLTextAreaElement>(null);
  const picker = useRef<HTMLInputElement>(null);
  useEffect(() => {
    if (matchMedia("(hover: hover)").matches) area.current?.focus();
  }, [store.openId]);

  const attach = async (chosen: Iterable<File>) => {
    for (const file of chosen) {
      try {
        const attachment = await readAttachment(file);
        setFiles((old) => [...old, attachment]);
      } catch (error) {
        store.set("notice", (error as Error).message);
      }
    }
  };
  useDroppedFiles((chosen) => void attach(chosen));

  const send = () => {
    if (running || !(text.trim() || files.length)) return;
    store.send(text.trim(), files);
    setText("");
    setFiles([]);
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    send();
  };
  const onPaste = (event: ClipboardEvent) => {
    const chosen = [...(event.clipboardData?.files ?? [])];
    const pasted = event.clipboardData?.getData("text/plain") ?? "";
    if (chosen.length && !pasted) void attach(chosen);
    if (pasted.length <= PASTED_CHARACTERS_AT_MOST) return;
    event.preventDefault();
    setFiles((old) => [...old, { name: "pasted.txt", text: pasted }]);
  };

  return (
    <form
      class="composer"
      onSubmit={(event) => {
        event.preventDefault();
        send();
      }}
    >
      <Chips files={files} remove={(index) => setFiles(files.toSpliced(index, 1))} />
      <div class="grow" data-text={text}>
        <textarea
          ref={area}
          id="message"
          rows={1}
          placeholder="Write a message"
          aria-label="Write a message"
          value={text}
          onInput={(event) => setText(event.currentTarget.value)}
          onKeyDown={onKeyDown}
          onPaste={onPaste}
        />
      </div>
      <div class="bar">
        <Action icon="attach" label="Attach text files" run={() => picker.current?.click()} />
        <input
          ref={picker}
          type="file"
          multiple
          hidden
          aria-label="Text files"
          onChange={(event) => {
            void attach([...(event.currentTarget.files ?? [])]);
            event.currentTarget.value = "";
          }}
        />
        <ContextUse store={store} />
        {running ? (
          <button
            type="button"
            class="round primary"
            aria-label="Stop"
            title="Stop (Esc)"
            onClick={() => store.stop()}
          >
            <Icon name="stop" />
          </button>
        ) : (
          <button
            type="submit"
            class="round primary"
            aria-label="Send"
            title="Send (Enter)"
            disabled={!text.trim() && !files.length}
          >
            <Icon name="send" />
          </button>
        )}
      </div>
    </form>
  );
}

function Chips({ files, remove }: { files: Attachment[]; remove(index: number): void }) {
  if (!files.length) return null;
  return (
    <ul class="chips" aria-label="Attached files">
      {files.map((file, index) => (
        <li key={index}>
          {file.name}
          <Action icon="close" label={`Remove ${file.name}`} run={() => remove(index)} />
        </li>
      ))}
    </ul>
  );
}

/** How much of the model's context the conversation took at its last answer. */
function ContextUse({ store }: { store: Store }) {
  const stats = store.shown.findLast((message) => message.stats)?.stats;
  const most = store.model?.max_model_len;
  if (!stats || !most) return <span class="context" />;
  const used = stats.promptTokens + stats.completionTokens;
  return (
    <label class="context">
      {used.toLocaleString("en")} of {most.toLocaleString("en")} tokens
      <meter min={0} max={most} high={most * 0.85} value={used} />
    </label>
  );
}

function useDroppedFiles(take: (files: File[]) => void): void {
  const latest = useRef(take);
  latest.current = take;
  useEffect(() => {
    const allow = (event: DragEvent) => {
      if (event.dataTransfer?.types.includes("Files")) event.preventDefault();
    };
    const drop = (event: DragEvent) => {
      if (!event.dataTransfer?.files.length) return;
      event.preventDefault();
      latest.current([...event.dataTransfer.files]);
    };
    addEventListener("dragover", allow);
    addEventListener("drop", drop);
    return () => {
      removeEventListener("dragover", allow);
      removeEventListener("drop", drop);
    };
  }, []);
}
