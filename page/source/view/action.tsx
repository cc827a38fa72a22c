// A button that shows an icon and says what it does.

import { Icon, type IconName } from "./icon";

interface ActionProps {
  icon: IconName;
  label: string;
  /** Written below the icon; without it the label is only a tooltip, and read out. */
  caption?: string;
  run(): void;
  disabled?: boolean;
}

export function Action({ icon, label, caption, run, disabled = false }: ActionProps) {
  return (
    <button
      type="button"
      class={caption ? "quiet labelled" : "quiet"}
      aria-label={label}
      title={label}
      disabled={disabled}
      onClick={run}
    >
      <Icon name={icon} />
      {caption && <span>{caption}</span>}
    </button>
  );
}
