// The three endpoints of its own origin that the page talks to. Paths are relative, so that it also
// works below a prefix of a reverse proxy.

import type { Message } from "./conversation";
import { type Chunk, readChunks } from "./events";
import { textWithAttachments } from "./files";
import { SAMPLING, type Settings } from "./settings";

export interface Model {
  id: string;
  max_model_len: number | null;
}

/** An answer of the server that is an error. */
export class ServerError extends Error {
  constructor(
    readonly status: number,
    message: string,
  ) {
    super(message);
  }
}

/** Why the server takes no requests at the moment. */
export interface Trouble {
  /** It will be ready by itself: the model is being loaded, or its engine restarted. */
  loading: boolean;
  reason: string;
  /** How far loading is, from 0 to 1; null: not known. */
  progress: number | null;
}

interface Health {
  status?: string;
  reason?: string;
  loading?: { done: number; total: number } | null;
}

const LOADING = ["starting", "engine_restarting"];
const NO_ANSWER = "The server does not answer. Try again.";

/** Null: the server is ready. */
export async function health(): Promise<Trouble | null> {
  try {
    const response = await fetch("health");
    if (response.ok) return null;
    const { status, reason, loading } = (await response.json()) as Health;
    return {
      loading: LOADING.includes(status ?? ""),
      reason: reason ?? status ?? `The server answers ${response.status}.`,
      progress: loading?.total ? loading.done / loading.total : null,
    };
  } catch {
    return { loading: false, reason: NO_ANSWER, progress: null };
  }
}

export async function models(key: string): Promise<Model[]> {
  const response = await fetch("v1/models", { headers: headers(key) });
  if (!response.ok) throw await errorOf(response);
  return ((await response.json()) as { data: Model[] }).data;
}

export async function* chat(
  path: readonly Message[],
  settings: Settings,
  model: string,
  key: string,
  signal: AbortSignal,
): AsyncGenerator<Chunk> {
  const response = await fetch("v1/chat/completions", {
    method: "POST",
    headers: { ...headers(key), "Content-Type": "application/json" },
    body: JSON.stringify(requestBody(path, settings, model)),
    signal,
  }).catch((error: Error) => {
    // Browsers word a refused connection as "Failed to fetch" and the like.
    throw error instanceof TypeError ? new ServerError(503, NO_ANSWER) : error;
  });
  if (!response.ok || !response.body) throw await errorOf(response);
  yield* readChunks(response.body);
}

/** What is asked for `path`; only what the user has set is sent besides the conversation. */
export function requestBody(
  path: readonly Message[],
  settings: Settings,
  model: string,
): Record<string, unknown> {
  const messages = requestMessages(path);
  const system = settings.systemPrompt.trim();
  if (system) messages.unshift({ role: "system", content: system });
  const body: Record<string, unknown> = {
    messages,
    stream: true,
    stream_options: { include_usage: true, continuous_usage_stats: true },
  };
  if (path.at(-1)?.role === "assistant") {
    body.continue_final_message = true;
    body.add_generation_prompt = false;
  }
  if (model) body.model = model;
  for (const { name, field } of SAMPLING)
    if (settings[name].trim()) body[field] = Number(settings[name]);
  if (settings.jsonSchema.trim())
    body.response_format = {
      type: "json_schema",
      json_schema: { name: "answer", schema: JSON.parse(settings.jsonSchema) as unknown },
    };
  if (settings.thinking !== "default")
    body.chat_template_kwargs = { enable_thinking: settings.thinking === "on" };
  if (settings.tools.trim()) {
    const tools = JSON.parse(settings.tools) as unknown[];
    if (tools.length) body.tools = tools;
  }
  return body;
}

function requestMessages(shown: readonly Message[]): Record<string, unknown>[] {
  // An answer that failed before its first token is no part of the conversation.
  const path = shown.filter(
    (message) => message.role !== "assistant" || message.content || message.toolCalls?.length,
  );
  const lastQuestion = path.findLastIndex((message) => message.role === "user");
  return path.map((message, index) => {
    const content = textWithAttachments(message);
    if (message.role === "user") return { role: "user", content };
    if (message.role === "tool")
      return { role: "tool", tool_call_id: message.toolCallId ?? "", content };
    const answer: Record<string, unknown> = { role: "assistant", content };
    if (!message.toolCalls?.length) return answer;
    answer.tool_calls = message.toolCalls.map((call) => ({
      id: call.id,
      type: "function",
      function: { name: call.name, arguments: call.arguments },
    }));
    // Templates show what was thought before a call, while the model has not answered yet.
    if (message.reasoning && index > lastQuestion) answer.reasoning_content = message.reasoning;
    return answer;
  });
}

function headers(key: string): Record<string, string> {
  return key ? { Authorization: `Bearer ${key}` } : {};
}

async function errorOf(response: Response): Promise<ServerError> {
  let message = `The server answers ${response.status} ${response.statusText}`.trim() + ".";
  try {
    const content = (await response.json()) as { error?: { message?: string } };
    message = content.error?.message ?? message;
  } catch {
    // Not the server's own error: a proxy's page, say.
  }
  return new ServerError(response.status, message);
}
