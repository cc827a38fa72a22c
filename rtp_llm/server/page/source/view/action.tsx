// A button that shows an icon and says what it does.

import { Icon, type IconName } from "./icon";

interface ActionProps {
  icon: IconName;
  label: string;
  run(): void;
  disabled?: boolean;
}

interface LabelledProps extends ActionProps {
  title: string;
}

export function Action({ icon, label, run, disabled = false }: ActionProps) {
  return (
    <button
      type="button"
      class="quiet"
      aria-label={label}
      title={label}
      disabled={disabled}
      onClick={run}
    >
      <Icon name={icon} />
    </button>
  );
}

/** The same with its label written below the icon; `title` is the whole name. */
export function Labelled({ icon, label, title, run, disabled = false }: LabelledProps) {
  return (
    <button
      type="button"
      class="quiet labelled"
      aria-label={title}
      title={title}
      disabled={disabled}
      onClick={run}
    >
      <Icon name={icon} />
      <span>{label}</span>
    </button>
  );
}
