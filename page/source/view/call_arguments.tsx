// The arguments of a tool call, indented where they are JSON.

import type { ToolCall } from "../conversation";
import { Code } from "./code";

export function CallArguments({ call }: { call: ToolCall }) {
  return <Code text={indented(call.arguments)} language="json" />;
}

function indented(json: string): string {
  try {
    return JSON.stringify(JSON.parse(json), null, 2);
  } catch {
    return json;
  }
}
