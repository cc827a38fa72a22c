// Keys that work anywhere on the page.

import type { Store } from "./store";

export const SHORTCUTS: [string, string][] = [
  ["Enter", "Send"],
  ["Shift Enter", "New line"],
  ["Esc", "Stop the answer"],
  ["Ctrl Shift O", "New conversation"],
  ["Ctrl K", "Search conversations"],
  ["Ctrl B", "Show or hide conversations"],
  ["Ctrl ,", "Settings"],
  ["/", "Write a message"],
  ["↑", "In an empty message: edit the last one"],
  ["Ctrl Enter", "Send an edited message"],
  ["?", "This list"],
];

export function listenForShortcuts(store: Store): void {
  addEventListener("keydown", (event) => {
    if (store.dialog || event.isComposing) return;
    const run = shortcut(event, store);
    if (!run) return;
    event.preventDefault();
    run();
  });
}

function shortcut(event: KeyboardEvent, store: Store): (() => void) | null {
  const key = event.key.toLowerCase();
  if (event.ctrlKey || event.metaKey) {
    if (key === "o" && event.shiftKey) return () => store.openConversation(null);
    if (key === "k") return () => showSearch(store);
    if (key === "b") return () => store.toggleSidebar();
    if (key === ",") return () => store.set("dialog", "settings");
    return null;
  }
  if (key === "escape") return () => store.escape();
  const target = event.target as HTMLElement;
  if (key === "arrowup" && target.id === "message" && !(target as HTMLTextAreaElement).value)
    return editLast;
  if (target.matches("input, textarea, select")) return null;
  if (key === "/") return () => focus("message");
  if (key === "?") return () => store.set("dialog", "shortcuts");
  return null;
}

function showSearch(store: Store): void {
  store.showSidebar();
  // Hidden things take no focus: once the list is drawn.
  requestAnimationFrame(() => requestAnimationFrame(() => focus("search")));
}

function focus(id: string): void {
  document.getElementById(id)?.focus();
}

function editLast(): void {
  const questions = document.querySelectorAll(".message.user");
  questions
    .item(questions.length - 1)
    ?.querySelector<HTMLElement>("[aria-label='Edit message']")
    ?.click();
}
