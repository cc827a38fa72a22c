// A block of code with its language and a button that copies it.

import type { ComponentChildren } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";
import { type Root, highlight } from "../highlight";
import { Icon } from "./icon";

export function Code({ text, language }: { text: string; language: string }) {
  const tree = useMemo(() => highlight(text, language), [text, language]);
  return (
    <figure class="code">
      <figcaption>
        <span>{language || "text"}</span>
        <CopyButton text={text} label="Copy code" />
      </figcaption>
      <pre tabIndex={0}>
        <code>{tree ? tree.children.map(node) : text}</code>
      </pre>
    </figure>
  );
}

function node(value: Root["children"][number]): ComponentChildren {
  if (value.type === "text") return value.value;
  if (value.type !== "element") return null;
  const names = value.properties.className;
  return (
    <span class={Array.isArray(names) ? names.join(" ") : ""}>{value.children.map(node)}</span>
  );
}

export function CopyButton({ text, label }: { text: string; label: string }) {
  const [copied, setCopied] = useState(false);
  useEffect(() => {
    if (!copied) return undefined;
    const timer = setTimeout(() => setCopied(false), 1500);
    return () => clearTimeout(timer);
  }, [copied]);
  const copy = () => void copyText(text).then(() => setCopied(true));
  return (
    <button
      type="button"
      class="quiet"
      aria-label={copied ? "Copied" : label}
      title={label}
      onClick={copy}
    >
      <Icon name={copied ? "check" : "copy"} />
    </button>
  );
}

/** Over plain HTTP browsers have no clipboard for pages; a selection can still be copied. */
async function copyText(text: string): Promise<void> {
  try {
    return await navigator.clipboard.writeText(text);
  } catch {
    copySelection(text);
  }
}

function copySelection(text: string): void {
  const area = document.createElement("textarea");
  area.value = text;
  area.className = "hidden";
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}
