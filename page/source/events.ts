// Server-sent events of a streamed chat, and the message that they make.

import type { Message, Stats, ToolCall } from "./conversation";

interface CallPiece {
  index?: number;
  id?: string;
  function?: { name?: string; arguments?: string };
}

/** A chunk of /v1/chat/completions, as far as it is read. */
export interface Chunk {
  model?: string;
  choices?: {
    delta?: {
      content?: string | null;
      reasoning_content?: string | null;
      reasoning?: string | null;
      tool_calls?: CallPiece[];
    };
    finish_reason?: string | null;
  }[];
  usage?: {
    prompt_tokens: number;
    completion_tokens: number;
    prompt_tokens_details?: { cached_tokens?: number } | null;
  } | null;
  error?: { message?: string };
}

/** The chunks of a stream; throws if it ends before its end mark, or has an error. */
export async function* readChunks(body: ReadableStream<Uint8Array>): AsyncGenerator<Chunk> {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) throw new Error("The connection ended before the answer did.");
      const lines = (rest + decoder.decode(value, { stream: true })).split(/\r?\n/);
      rest = lines.pop() ?? "";
      for (const line of lines) {
        if (!line.startsWith("data:")) continue; // comments keep the connection open
        const data = line.slice(5).trim();
        if (data === "[DONE]") return;
        const chunk = JSON.parse(data) as Chunk;
        if (chunk.error) throw new Error(chunk.error.message ?? "The server reports an error.");
        yield chunk;
      }
    }
  } finally {
    void reader.cancel().catch(() => undefined);
  }
}

/** Grows an answer chunk by chunk, with the times at which they came (in milliseconds). */
export class AnswerBuilder {
  private first: number | null = null;
  private last = 0;
  private thoughtFrom: number | null = null;

  constructor(
    private message: Message,
    private readonly asked: number,
  ) {}

  add(chunk: Chunk, now: number): Message {
    const next = { ...this.message };
    if (chunk.model) next.model = chunk.model;
    const choice = chunk.choices?.[0];
    if (choice) this.addDelta(next, choice.delta ?? {}, now);
    if (choice?.finish_reason) next.finish = choice.finish_reason;
    if (chunk.usage) next.stats = this.stats(chunk.usage);
    return (this.message = next);
  }

  private addDelta(
    next: Message,
    delta: NonNullable<NonNullable<Chunk["choices"]>[0]["delta"]>,
    now: number,
  ): void {
    // Servers send one text under both names.
    const reasoning = delta.reasoning_content ?? delta.reasoning;
    if (!reasoning && !delta.content && !delta.tool_calls?.length) return;
    this.first ??= now;
    this.last = now;
    if (reasoning) {
      this.thoughtFrom ??= now;
      next.reasoning = (next.reasoning ?? "") + reasoning;
      next.reasoningSeconds = (now - this.thoughtFrom) / 1000;
    }
    if (delta.content) next.content += delta.content;
    for (const piece of delta.tool_calls ?? []) next.toolCalls = addCall(next.toolCalls, piece);
  }

  private stats(usage: NonNullable<Chunk["usage"]>): Stats {
    const first = this.first ?? this.asked;
    return {
      promptTokens: usage.prompt_tokens,
      cachedTokens: usage.prompt_tokens_details?.cached_tokens ?? 0,
      completionTokens: usage.completion_tokens,
      firstTokenSeconds: (first - this.asked) / 1000,
      seconds: Math.max(0, this.last - first) / 1000,
    };
  }
}

function addCall(calls: ToolCall[] = [], piece: CallPiece): ToolCall[] {
  const at = piece.index ?? 0;
  if (!Number.isInteger(at) || at < 0 || at > calls.length) return calls;
  const old = calls[at] ?? { id: "", name: "", arguments: "" };
  const call = {
    id: old.id || (piece.id ?? ""),
    name: old.name + (piece.function?.name ?? ""),
    arguments: old.arguments + (piece.function?.arguments ?? ""),
  };
  return calls.toSpliced(at, 1, call);
}
