// LaTeX as MathML. Temml makes nodes, no HTML; commands that could carry addresses are off.

import { useLayoutEffect, useRef } from "preact/hooks";
import temml from "temml";

const CHARACTERS_AT_MOST = 10_000;
const EM_AT_MOST = 20;

export function Formula({ text, display }: { text: string; display: boolean }) {
  const place = useRef<HTMLSpanElement>(null);
  useLayoutEffect(() => {
    if (place.current) draw(place.current, text, display);
  }, [text, display]);
  return <span ref={place} class={display ? "formula display" : "formula"} />;
}

function draw(place: HTMLElement, text: string, display: boolean): void {
  try {
    if (text.length > CHARACTERS_AT_MOST) throw new RangeError("too long");
    temml.render(text, place, {
      annotate: true, // a copied formula is LaTeX again
      displayMode: display,
      maxExpand: 500,
      maxSize: [EM_AT_MOST, EM_AT_MOST],
      throwOnError: true,
      trust: false,
    });
    // \label names elements and \ref links to them: names of the page are not a model's to give.
    for (const node of place.querySelectorAll("[id], [href]")) {
      node.removeAttribute("id");
      node.removeAttribute("href");
    }
  } catch {
    // Not LaTeX, or not yet complete: as it was written.
    const code = document.createElement("code");
    code.textContent = text;
    place.replaceChildren(code);
  }
}
