// Icons, drawn as lines in a square of 24.

const PATHS = {
  attach:
    "M21 11.5 12.5 20a5.5 5.5 0 0 1-7.8-7.8L13 3.9a3.7 3.7 0 0 1 5.2 5.2l-8.3 8.3a1.8 1.8 0 0 1-2.6-2.6l7.7-7.7",
  branch:
    "M6 4v12M6 16a2 2 0 1 0 0 4 2 2 0 0 0 0-4ZM18 4a2 2 0 1 0 0 4 2 2 0 0 0 0-4ZM18 8c0 5-6 4-11 8",
  check: "m5 12.5 4.5 4.5L19 7.5",
  close: "m6 6 12 12M18 6 6 18",
  continue: "m8 5 10 7-10 7V5Z",
  copy: "M9 9h11v11H9zM5 15H4V4h11v1",
  down: "m6 10 6 6 6-6",
  edit: "m4 20 1-4L16 5l3 3L8 19l-4 1ZM14 7l3 3",
  export: "M12 4v11m-4-4 4 4 4-4M5 20h14",
  import: "M12 15V4M8 8l4-4 4 4M5 20h14",
  keyboard: "M3 7h18v10H3zM7 10.5h.01M10.5 10.5h.01M14 10.5h.01M17 10.5h.01M8 14h8",
  left: "m14 6-6 6 6 6",
  menu: "M4 7h16M4 12h16M4 17h16",
  new: "M12 5v14M5 12h14",
  regenerate: "M19.5 12a7.5 7.5 0 1 1-2.2-5.3L20 9.2M20 4.5v4.7h-4.7",
  right: "m10 6 6 6-6 6",
  search: "M11 4a7 7 0 1 0 0 14 7 7 0 0 0 0-14Zm5 12 4 4",
  send: "M12 19V5m-6 6 6-6 6 6",
  settings:
    "M4 7h9m5 0h2M4 17h3m5 0h8M13 7a2.5 2.5 0 1 0 5 0 2.5 2.5 0 0 0-5 0ZM7 17a2.5 2.5 0 1 0 5 0 2.5 2.5 0 0 0-5 0Z",
  stop: "M7 7h10v10H7z",
  system: "M4 5h16v11H9l-5 4V5Zm4 4h8M8 12h5",
  trash: "M5 7h14M10 7V4h4v3M7 7l1 13h8l1-13",
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name }: { name: IconName }) {
  return (
    <svg class="icon" viewBox="0 0 24 24" aria-hidden="true">
      <path d={PATHS[name]} />
    </svg>
  );
}
