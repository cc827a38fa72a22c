// A button that shows an icon and says what it does.

import { Icon, type IconName } from "./icon";

interface ActionProps {
  icon: IconName;
  label: string;
  run(): void;
  disabled?: boolean;
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
