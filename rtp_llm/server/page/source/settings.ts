// What the user has set. The key is kept apart, so that it never is in what a user copies or exports.

export interface Settings {
  systemPrompt: string;
  /** Empty: the server's default. Numbers are kept as typed, and sent as numbers. */
  temperature: string;
  maxTokens: string;
  topP: string;
  /** Empty: the first that the server has. */
  model: string;
  thinking: "default" | "on" | "off";
  /** Tools as JSON, in the form of the chat API; empty: none. */
  tools: string;
  theme: "auto" | "light" | "dark";
  rememberKey: boolean;
}

const NAME = "rtp-llm.settings";
const KEY_NAME = "rtp-llm.api-key";

export const DEFAULTS: Settings = {
  systemPrompt: "",
  temperature: "",
  maxTokens: "",
  topP: "",
  model: "",
  thinking: "default",
  tools: "",
  theme: "auto",
  rememberKey: false,
};

const CHOICES: Partial<Record<keyof Settings, readonly string[]>> = {
  thinking: ["default", "on", "off"],
  theme: ["auto", "light", "dark"],
};

export function loadSettings(): Settings {
  const settings: Record<string, unknown> = { ...DEFAULTS };
  let stored: unknown = null;
  try {
    stored = JSON.parse(localStorage.getItem(NAME) ?? "null");
  } catch {
    // Not ours, or storage is forbidden: the defaults.
  }
  if (typeof stored === "object" && stored !== null) {
    for (const [name, value] of Object.entries(stored)) {
      if (fits(name, value)) settings[name] = value;
    }
  }
  return settings as unknown as Settings;
}

function fits(name: string, value: unknown): boolean {
  if (!Object.hasOwn(DEFAULTS, name)) return false;
  const known = name as keyof Settings;
  const choices = CHOICES[known];
  if (choices) return choices.includes(value as string);
  return typeof value === typeof DEFAULTS[known];
}

/** `key` stays until the tab is closed, or for good if the user wants that. */
export function saveSettings(settings: Settings, key: string): void {
  try {
    localStorage.setItem(NAME, JSON.stringify(settings));
    localStorage.removeItem(KEY_NAME);
    sessionStorage.removeItem(KEY_NAME);
    if (key) (settings.rememberKey ? localStorage : sessionStorage).setItem(KEY_NAME, key);
  } catch {
    // Storage is forbidden or full; the settings hold for this visit.
  }
}

export function loadKey(): string {
  try {
    return sessionStorage.getItem(KEY_NAME) ?? localStorage.getItem(KEY_NAME) ?? "";
  } catch {
    return "";
  }
}

/** What is wrong with a value, by the setting's name; empty if all can be sent. */
export function problems(settings: Settings): Partial<Record<keyof Settings, string>> {
  const found: Partial<Record<keyof Settings, string>> = {};
  if (!isNumber(settings.temperature, 0, 2)) found.temperature = "A number from 0 to 2.";
  if (!isNumber(settings.topP, 0, 1) || Number(settings.topP || 1) === 0)
    found.topP = "A number above 0, at most 1.";
  if (!/^\d*$/.test(settings.maxTokens.trim()) || settings.maxTokens.trim() === "0")
    found.maxTokens = "A whole number, at least 1.";
  const wrong = problemOfTools(settings.tools);
  if (wrong) found.tools = wrong;
  return found;
}

function isNumber(text: string, least: number, most: number): boolean {
  if (!text.trim()) return true;
  const value = Number(text);
  return Number.isFinite(value) && value >= least && value <= most;
}

function problemOfTools(text: string): string {
  if (!text.trim()) return "";
  try {
    return Array.isArray(JSON.parse(text)) ? "" : "A JSON list of tools.";
  } catch (error) {
    return `Not JSON: ${(error as Error).message}`;
  }
}
