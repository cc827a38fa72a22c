"""The table of operators, read from their declarations; nothing here imports torch.

A declaration is a typed function in rtp_llm/ops/<family>/<file>.py under `@operator`; declare.py
says what the decorator makes of it. Its text is read here, so that a build can make the C++ half of
operators (generate.py) and the package its table of names without importing what it declares.

T tokens, H query heads, Hk KV heads, D head size, B sequences, N blocks, S block size,
V vocabulary, R sampled rows. Index tensors are int32 unless said.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
# Of annotations in declarations; all but MutableTensor may have `| None`.
_TYPES = ("Tensor", "MutableTensor", "bool", "float", "int", "str")


class DeclarationError(ValueError):
    """A declaration that no schema can be made of; the message names file and line."""


@dataclass(frozen=True)
class OperatorEntry:
    """One operator: `module` ("family.file") declares it, `module`_reference holds its reference.

    A family never has the name of an operator: importing it would hide the function of the package.
    """

    schema: str
    module: str
    optional: bool = False  # a device may lack it: layers ask has_kernel() and go another way
    composite: bool = False  # where there is no kernel plain PyTorch is its form, without asking
    declared: bool = False  # by @operator, whose body is the Meta function

    @property
    def name(self) -> str:
        """Its name in torch.ops.rtp_llm."""
        return self.schema.partition("(")[0]

    @property
    def reference(self) -> str:
        """ "module:function" of the plain PyTorch reference."""
        return f"rtp_llm.ops.{self.module}_reference:{self.name}_reference"

    @property
    def meta(self) -> str:
        """ "module:function" that gives results of the right shape and dtype without data."""
        if self.declared:
            return f"rtp_llm.ops.{self.module}:{self.name}.meta"
        return f"rtp_llm.ops.{self.module}_reference:{self.name}_meta"


def declarations(folder: Path) -> Iterator[OperatorEntry]:
    """Every `@operator` below `folder`, by file and line. Raises DeclarationError."""
    for path in sorted(folder.glob("*/*.py")):
        if path.name.endswith(("_reference.py", "_test.py")):
            continue
        text = path.read_text()
        if "@operator" in text:
            module = f"{path.parent.name}.{path.stem}"
            for node in ast.parse(text, str(path)).body:
                if isinstance(node, ast.FunctionDef):
                    yield from _declared(node, module, path)


def _declared(node: ast.FunctionDef, module: str, path: Path) -> Iterator[OperatorEntry]:
    for decorator in node.decorator_list:
        name = decorator.func if isinstance(decorator, ast.Call) else decorator
        if isinstance(name, ast.Name) and name.id == "operator":
            options = decorator.keywords if isinstance(decorator, ast.Call) else []
            flags = {str(option.arg): bool(ast.literal_eval(option.value)) for option in options}
            flags["optional"] = flags.get("optional", False) or flags.get("composite", False)
            try:
                yield OperatorEntry(schema_of(node), module, declared=True, **flags)
            except DeclarationError as error:
                raise DeclarationError(f"{path}:{node.lineno}: {node.name}: {error}") from None


def schema_of(node: ast.FunctionDef) -> str:
    """The schema of a typed function. Raises DeclarationError."""
    if node.args.vararg or node.args.kwarg:
        raise DeclarationError("an operator has no *args or **kwargs")
    positional = [*node.args.posonlyargs, *node.args.args]
    missing = [None] * (len(positional) - len(node.args.defaults))
    named = zip(
        [*positional, *node.args.kwonlyargs],
        [*missing, *node.args.defaults, *node.args.kw_defaults],
        strict=True,
    )
    letters = iter("abcdefghijklmnop")
    parameters = [
        f"{_type_of(argument, letters)} {argument.arg}" + ("" if value is None else _default(value))
        for argument, value in named
    ]
    return f"{node.name}({', '.join(parameters)}) -> {_result_of(node.returns)}"


def _default(value: ast.expr) -> str:
    return f"={ast.literal_eval(value)!r}"


def _type_of(argument: ast.arg, letters: Iterator[str]) -> str:
    text = "" if argument.annotation is None else ast.unparse(argument.annotation)
    base = text.removesuffix(" | None")
    if base not in _TYPES:
        raise DeclarationError(
            f"{argument.arg} is {text or 'without a type'}; expected {', '.join(_TYPES)}"
        )
    if base == "MutableTensor":
        base = f"Tensor({next(letters)}!)"
    return base + ("?" if text != base and text.endswith(" | None") else "")


def _result_of(returns: ast.expr | None) -> str:
    text = "" if returns is None else ast.unparse(returns)
    if text == "None":
        return "()"
    parts = text.removeprefix("tuple[").removesuffix("]").split(", ")
    if not set(parts) <= {"Tensor", "int"}:
        raise DeclarationError(
            f"it returns {text or 'nothing said'}; expected tensors, int or None"
        )
    return f"({', '.join(parts)})" if text.startswith("tuple[") else text


# Not yet declared where their functions are.
_SCHEMAS = (
    ("activation.activation", "silu_and_mul(Tensor x) -> Tensor"),
    ("activation.activation", "gelu_and_mul(Tensor x, bool tanh) -> Tensor"),
    ("gemm.linear", "linear(Tensor x, Tensor weight, Tensor? bias=None) -> Tensor"),
    (
        "gemm.linear",
        "int8_linear(Tensor x, Tensor weight, Tensor scale, Tensor? bias=None) -> Tensor",
    ),
    (
        "gemm.linear",
        "w8a8_int8_linear(Tensor x, Tensor weight, Tensor scale, Tensor? bias=None) -> Tensor",
    ),
    ("lookup.lookup", "embedding(Tensor ids, Tensor table) -> Tensor"),
    ("lookup.lookup", "substitute_tokens(Tensor(a!) ids, Tensor previous) -> ()"),
    (
        "rope.rope",
        "rope_kv_write(Tensor(a!) qkv, Tensor positions, Tensor? cos_sin, Tensor(b!)? kv_cache, "
        "Tensor? slot_mapping, int num_heads, int num_kv_heads, int head_dim, bool is_neox, "
        "int rotary_offset=0) -> ()",
    ),
    (
        "rope.fused_rope",
        "rotate_and_store(Tensor q, Tensor k, Tensor? v, Tensor(a!)? q_out, Tensor(b!)? k_out, "
        "Tensor(c!)? v_out, Tensor? q_weight, Tensor? k_weight, float eps, Tensor? cos_sin, "
        "Tensor? positions, Tensor? cu_seqlens, Tensor? past_lengths, Tensor? offsets, "
        "Tensor? slots, Tensor(d!)? k_cache, Tensor(e!)? v_cache, Tensor? k_scale, "
        "Tensor? v_scale, "
        "Tensor(f!)? scales, bool is_neox, int rotary_offset, int height_pairs, int width_pairs, "
        "bool axes_interleaved, int log_length, int padded_queries) -> ()",
    ),
    (
        "attention.paged_attention",
        "paged_attention(Tensor q, Tensor kv_cache, Tensor cu_seqlens_q, Tensor seq_lens, "
        "Tensor block_table, int max_seqlen_q, int max_seqlen_k, float scale, bool causal=True, "
        "int window=0, float soft_cap=0.0, Tensor? sinks=None) -> Tensor",
    ),
    ("kv_cache.copy_blocks", "copy_blocks(Tensor(a!) cache, Tensor pairs) -> ()"),
    (
        "sampling.sampling",
        "apply_penalties(Tensor(a!) logits, Tensor tokens, Tensor cu_tokens, "
        "Tensor output_lens, Tensor repetition, Tensor presence, Tensor frequency) -> ()",
    ),
    (
        "sampling.sampling",
        "ban_repeated_ngrams(Tensor(a!) logits, Tensor tokens, Tensor cu_tokens, "
        "Tensor ngram_size) -> ()",
    ),
    (
        "sampling.sampling",
        "add_logit_bias(Tensor(a!) logits, Tensor rows, Tensor ids, Tensor values) -> ()",
    ),
    (
        "sampling.sampling",
        "sample(Tensor logits, Tensor temperature, Tensor top_k, Tensor top_p, Tensor min_p, "
        "Tensor seeds, Tensor steps) -> (Tensor, Tensor)",
    ),
    (
        "sampling.sampling",
        "top_logprobs(Tensor logits, Tensor tokens, int k) -> (Tensor, Tensor, Tensor)",
    ),
)

_OPTIONAL_SCHEMAS = (
    (
        "gemm.skinny_linear",
        "linear_add(Tensor x, Tensor weight, Tensor? bias, Tensor(a!) residual) -> ()",
    ),
    (
        "gemm.skinny_linear",
        "norm_linear(Tensor x, Tensor norm_weight, float eps, Tensor weight, Tensor? bias=None) "
        "-> Tensor",
    ),
    (
        "gemm.skinny_linear",
        "norm_gated_linear(Tensor x, Tensor norm_weight, float eps, Tensor weight, Tensor? bias, "
        "str activation) -> Tensor",
    ),
    ("gemm.skinny_linear", "linear_float(Tensor x, Tensor weight) -> Tensor"),
    (
        "attention.decode_attention",
        "decode_attention(Tensor qkv, Tensor(a!) kv_cache, Tensor(b!) counters, Tensor positions, "
        "Tensor seq_lens, Tensor slot_mapping, Tensor block_table, float scale, "
        "Tensor? cos_sin=None, Tensor? q_weight=None, Tensor? k_weight=None, float eps=1e-06, "
        "bool is_neox=True, int rotary_offset=0, int window=0, float soft_cap=0.0, "
        "Tensor? k_scale=None, Tensor? v_scale=None, bool early=False) -> Tensor",
    ),
    ("gemm.skinny_linear", "fused_linear_rows(Tensor weight) -> int"),
    (
        "fp8.fp8_norm",
        "norm_fp8(Tensor(a!) residual, Tensor? pending, Tensor weight, float eps) -> "
        "(Tensor, Tensor)",
    ),
    (
        "moe.moe",
        "select_topk(Tensor logits, Tensor(a!) ids, Tensor(b!) weights, bool renormalize) -> ()",
    ),
    (
        "moe.moe",
        "group_topk(Tensor logits, Tensor? bias, Tensor(a!) ids, Tensor(b!) weights, str "
        "scoring, int num_groups, int top_groups, int group_best, bool renormalize, float "
        "scaling) -> ()",
    ),
    (
        "moe.moe",
        "fake_balance_expert(Tensor(a!) ids, Tensor(b!) scales, int expert_num, int dp_rank, "
        "int dp_size, int ep_size) -> ()",
    ),
    ("moe.moe", "sort_by_expert(Tensor ids, int num_experts) -> (Tensor, Tensor, Tensor)"),
    ("moe.moe", "grouped_linear(Tensor x, Tensor weight, Tensor offsets) -> Tensor"),
    ("moe.moe", "sum_experts(Tensor y, Tensor places, Tensor weights) -> Tensor"),
    (
        "mla.mla",
        "mla_rotate_and_store(Tensor q, Tensor(a!) q_out, Tensor kv, Tensor norm_weight, "
        "float eps, Tensor? cos_sin, Tensor positions, Tensor(b!) cache, Tensor slots, "
        "bool is_neox=False) -> ()",
    ),
    (
        "mla.mla",
        "mla_attention(Tensor q, Tensor cache, Tensor cu_seqlens_q, Tensor seq_lens, "
        "Tensor block_table, int latent_size, int max_seqlen_q, int max_seqlen_k, float scale) "
        "-> Tensor",
    ),
    (
        "mla.mla",
        "mla_decode(Tensor q, Tensor cache, Tensor cu_seqlens_q, Tensor seq_lens, "
        "Tensor block_table, int latent_size, int max_seqlen_k, float scale) -> Tensor",
    ),
)

_COMPOSITE_SCHEMAS = (
    ("fp8.fp8_activation", "fp8_quantize(Tensor x, Tensor? masked_m=None) -> (Tensor, Tensor)"),
    ("fp8.fp8_activation", "silu_and_mul_fp8(Tensor x, Tensor? masked_m=None) -> (Tensor, Tensor)"),
    (
        "fp8.fp8_gemm",
        "fp8_linear(Tensor q, Tensor scales, Tensor weight, Tensor weight_scales, int num_sms=-1, "
        "bool? swap_ab=None) -> Tensor",
    ),
    (
        "fp8.fp8_gemm",
        "fp8_grouped_masked(Tensor q, Tensor scales, Tensor weight, Tensor weight_scales, "
        "Tensor masked_m, int expected_m, int num_sms=-1, bool? swap_ab=None) -> Tensor",
    ),
    (
        "fp8.fp8_gemm",
        "fp8_grouped_contiguous(Tensor q, Tensor scales, Tensor weight, Tensor weight_scales, "
        "Tensor m_indices, int num_sms=-1) -> Tensor",
    ),
    (
        "fp8.fp8_gemm",
        "fp8_grouped_ragged(Tensor q, Tensor scales, Tensor weight, Tensor weight_scales, "
        "Tensor starts, Tensor counts, int expected_m, int num_sms=-1, "
        "bool? swap_ab=None) -> Tensor",
    ),
    (
        "fp8.fp8_gemm",
        "deep_gemm_fp8(Tensor lhs, Tensor rhs_data, Tensor rhs_scale, "
        "int user_deep_gemm_num_sm=-1, bool? swap_ab=None) -> Tensor",
    ),
    (
        "fp8.fp8_gemm",
        "deep_gemm_grouped_fp8_masked(Tensor lhs, Tensor rhs_data, Tensor rhs_scale, "
        "Tensor(a!) output, Tensor masked_m, int expected_m, int user_deep_gemm_num_sm=-1, "
        "Tensor? lhs_scale=None, bool? swap_ab=None) -> ()",
    ),
    (
        "fp8.fp8_scatter",
        "scatter_fp8(Tensor x, Tensor ids, Tensor places, Tensor offsets) -> "
        "(Tensor, Tensor, Tensor, Tensor)",
    ),
    (
        "fp8.fp8_scatter",
        "scatter_fp8_ragged(Tensor x, Tensor ids, Tensor places, Tensor offsets) -> "
        "(Tensor, Tensor, Tensor, Tensor, Tensor)",
    ),
)

_ENTRIES = (
    *declarations(FOLDER),
    *(OperatorEntry(schema, module) for module, schema in _SCHEMAS),
    *(OperatorEntry(schema, module, optional=True) for module, schema in _OPTIONAL_SCHEMAS),
    *(
        OperatorEntry(schema, module, optional=True, composite=True)
        for module, schema in _COMPOSITE_SCHEMAS
    ),
)
OPERATORS: dict[str, OperatorEntry] = {entry.name: entry for entry in _ENTRIES}


def schema_hash() -> str:
    """64-bit FNV-1a of the sorted schemas, each and a newline; 16 hexadecimal digits."""
    value = 0xCBF29CE484222325
    for schema in sorted(entry.schema for entry in OPERATORS.values()):
        for byte in f"{schema}\n".encode():
            value = (value ^ byte) * 0x100000001B3 % 2**64
    return f"{value:016x}"
