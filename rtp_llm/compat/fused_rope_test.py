# SPDX-License-Identifier: Apache-2.0
"""The fused RoPE operators: every style, layout and block size, chunks, decodes, 8 bits, errors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from rtp_llm import compat, ops
from rtp_llm.compat import RopeSettings, RopeStyle
from rtp_llm.testing.fused_steps import MAX_TOKENS, Step, configs
from rtp_llm.testing.operator_checks import kernel_runs

BASE = RopeSettings(RopeStyle.Base, 64)
STYLES = [
    RopeSettings(),
    BASE,
    RopeSettings(RopeStyle.Base, 64, scale=4.0, is_neox_style=False),
    RopeSettings(RopeStyle.Base, 32, offset=16),
    RopeSettings(RopeStyle.Glm2, 64),
    RopeSettings(RopeStyle.DynamicNTK, 64, scale=2.0, max_pos=32),
    RopeSettings(RopeStyle.QwenDynamicNTK, 64, max_pos=32),
    RopeSettings(RopeStyle.Yarn, 64, scale=4.0, factor1=1, factor2=32, max_pos=32, mscale=1.1),
    RopeSettings(RopeStyle.Llama3, 64, scale=8.0, factor1=1, factor2=4, max_pos=32),
]
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 5e-3}

every_style = pytest.mark.parametrize("rope", STYLES, ids=lambda rope: rope.style.name)
every_dtype = pytest.mark.parametrize("dtype", list(TOLERANCES), ids=str)


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def turned(heads: Tensor, rope: RopeSettings, positions: Tensor) -> Tensor:
    """[T, heads, D] rotated as complex numbers of float64, from the style's own table."""
    table = rope.table()
    result = heads.double().clone()
    if table is None:
        return result
    rows = ops.rope_table(table, MAX_TOKENS, heads.device)[positions.long()].double()
    turn = torch.complex(*rows.unsqueeze(1).chunk(2, dim=-1))
    part = result[..., rope.offset : rope.offset + table.rotary_dim]
    if rope.is_neox:
        both = torch.complex(*part.chunk(2, dim=-1)) * turn
        part.copy_(torch.cat((both.real, both.imag), dim=-1))
    else:
        both = torch.complex(part[..., 0::2], part[..., 1::2]) * turn
        part.copy_(torch.stack((both.real, both.imag), dim=-1).flatten(-2))
    return result


def parts(config: compat.AttentionConfigs, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    heads = rows.view(len(rows), -1, config.size_per_head)
    keys, values = config.head_num, config.head_num + config.kv_head_num
    return heads[:, :keys], heads[:, keys:values], heads[:, values:]


def assert_close(actual: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    limit = TOLERANCES[dtype]
    torch.testing.assert_close(actual.double(), expected.double(), rtol=limit, atol=limit)


def prefill(step: Step, qkv: Tensor, new: list[int], past: list[int], **changes: Any) -> Tensor:
    operator = compat.FusedRopeKVCachePrefillOpQOut(step.config)
    params = operator.prepare(step.prefill(new, past, **changes))
    with kernel_runs("rotate_and_store"):
        return operator.forward(qkv, step.cache, params)


@every_style
@every_dtype
@pytest.mark.parametrize("size", [64, 128, 256])
@pytest.mark.parametrize("shared", [1, 4, 8])
def test_prefill_equals_float64(
    rope: RopeSettings, dtype: torch.dtype, size: int, shared: int
) -> None:
    step = Step.random(configs(rope, (8, 8 // shared, size)), 3, dtype)
    new, past = [5, 1, 40], [0, 16, 37]
    qkv = step.qkv(sum(new))
    q = prefill(step, qkv, new, past)
    positions = torch.cat([p + torch.arange(n) for n, p in zip(new, past, strict=True)])
    old_q, old_k, old_v = parts(step.config, qkv)
    assert_close(q, turned(old_q, rope, positions), dtype)
    expected_k = turned(old_k, rope, positions)
    first = 0
    for request, (n, p) in enumerate(zip(new, past, strict=True)):
        k, v = step.stored(request, p + n)[:, p:]
        assert_close(k, expected_k[first : first + n], dtype)
        assert torch.equal(v, old_v[first : first + n])
        first += n


@every_style
def test_packed_result_and_queries_alone_agree(rope: RopeSettings) -> None:
    step = Step.random(configs(rope), 2, torch.bfloat16)
    qkv = step.qkv(30)
    operator = compat.FusedRopeKVCachePrefillOpQKVOut(step.config)
    params = operator.prepare(step.prefill([13, 17], [0, 0]))
    packed = operator.forward(qkv, step.cache, params)
    cache = step.cache.kv_cache_base.clone()
    q = prefill(step, qkv, [13, 17], [0, 0])
    new_q, _, v = parts(step.config, packed)
    assert torch.equal(new_q, q)
    assert torch.equal(v, parts(step.config, qkv)[2])
    assert torch.equal(step.cache.kv_cache_base, cache)
    assert torch.equal(operator.forward(qkv, None, params), packed)
    split = compat.FusedRopeKVCachePrefillOpSplitOut(step.config)
    params = split.prepare(step.prefill([13, 17], [0, 0]))
    for part, expected in zip(
        split.forward(qkv, None, params), parts(step.config, packed), strict=True
    ):
        assert part.is_contiguous()
        assert torch.equal(part, expected)
    assert torch.equal(split.forward(qkv, step.cache, params)[0], q)
    assert torch.equal(step.cache.kv_cache_base, cache)


@pytest.mark.parametrize("planes", [True, False])
@pytest.mark.parametrize("ratio", [1, 2, 4, 8])
def test_kernel_blocks_are_parts_of_physical_ones(ratio: int, planes: bool) -> None:
    config = configs(BASE, blocks=(32, 32 // ratio), planes=planes)
    step = Step.random(config, 3, torch.float32)
    qkv, new = step.qkv(100), [70, 1, 29]
    prefill(step, qkv, new, [0, 0, 0])
    _, _, v = parts(config, qkv)
    for request, first in enumerate((0, 70, 71)):
        stored = step.stored(request, new[request])[1]
        assert torch.equal(stored, v[first : first + new[request]])


@every_dtype
@pytest.mark.parametrize("cut", [1, 15, 16, 17, 63, 64])
def test_two_chunks_and_a_decode_write_the_same_cache(dtype: torch.dtype, cut: int) -> None:
    step = Step.random(configs(STYLES[5]), 2, dtype)
    qkv = step.qkv(130)
    q = prefill(step, qkv, [65, 65], [0, 0]).clone()
    whole = step.cache.kv_cache_base.clone()
    step.cache.kv_cache_base.zero_()
    rows = qkv.view(2, 65, -1)
    first = prefill(step, rows[:, :cut].flatten(0, 1), [cut] * 2, [0] * 2).clone()
    assert torch.equal(first.view(2, cut, 4, 64), q.view(2, 65, 4, 64)[:, :cut])
    if cut < 64:
        prefill(step, rows[:, cut:64].flatten(0, 1), [64 - cut] * 2, [cut] * 2)
    decode = compat.FusedRopeKVCacheDecodeOp(step.config)
    params = decode.prepare(step.decode([64, 64]))
    with kernel_runs("rotate_and_store"):
        last = decode.forward(rows[:, 64], step.cache, params)
    assert torch.equal(last, q.view(2, 65, 4, 64)[:, 64])
    assert torch.equal(step.cache.kv_cache_base, whole)


@pytest.mark.parametrize("past", [15, 16, 17])
def test_decode_writes_one_slot(past: int) -> None:
    step = Step.random(configs(BASE), 1, torch.float32)
    operator, qkv = compat.FusedRopeKVCacheDecodeOp(step.config), step.qkv(1)
    operator.forward(qkv, step.cache, operator.prepare(step.decode([past])))
    written = step.cache.kv_cache_base[1].any(dim=-1).any(dim=-1).nonzero().tolist()
    assert written == [[step.physical[0, past // 16].item(), past % 16]]


@pytest.mark.parametrize("interleaved", [True, False])
def test_mrope_with_equal_axes_is_base(interleaved: bool) -> None:
    sections = {"mrope_dim1": 12, "mrope_dim2": 10, "mrope_dim3": 10}
    mrope = RopeSettings(
        RopeStyle.Mrope, 64, index_factor=3, mrope_interleaved=interleaved, **sections
    )
    step = Step.random(configs(mrope), 1, torch.float32)
    qkv, positions = step.qkv(20), torch.randint(0, MAX_TOKENS, (20,), dtype=torch.int32)
    ids = positions[:, None].expand(20, 3).flatten().contiguous()
    actual = prefill(step, qkv, [20], [0], combo_position_ids=ids)
    assert_close(actual, turned(parts(step.config, qkv)[0], BASE, positions), torch.float32)
    ids = torch.randint(0, MAX_TOKENS, (60,), dtype=torch.int32)
    assert not torch.equal(prefill(step, qkv, [20], [0], combo_position_ids=ids), actual)
    with pytest.raises(RuntimeError, match="three for each token"):
        prefill(step, qkv, [20], [0])


def test_explicit_positions_win_and_zero_is_a_position() -> None:
    step = Step.random(configs(BASE), 1, torch.float32)
    qkv, ids = step.qkv(4), torch.tensor([9, 0, 3, 0], dtype=torch.int32)
    q = prefill(step, qkv, [4], [20], combo_position_ids=ids)
    assert_close(q, turned(parts(step.config, qkv)[0], BASE, ids), torch.float32)
    assert torch.equal(step.stored(0, 24)[1, 20:], parts(step.config, qkv)[2])


def test_context_parallel_tokens_stand_where_they_were() -> None:
    step = Step.random(configs(BASE), 1, torch.float32)
    qkv, order = step.qkv(4), torch.tensor([0, 7, 1, 6], dtype=torch.int32)
    info = compat.attention_inputs.ContextParallelInfo(order)
    q = prefill(step, qkv, [4], [0], context_parallel_info=info)
    assert_close(q, turned(parts(step.config, qkv)[0], BASE, order), torch.float32)
    with pytest.raises(RuntimeError, match="context parallelism with a prefix"):
        prefill(step, qkv, [4], [1], context_parallel_info=info)


def test_two_models_in_one_process_have_their_own_tables() -> None:
    ropes = (BASE, RopeSettings(RopeStyle.Base, 64, base=500_000.0))
    steps = [Step.random(configs(rope), 1, torch.float32) for rope in ropes]
    qkv, positions = steps[0].qkv(9), torch.arange(9)
    for _ in range(2):
        for step, rope in zip(steps, ropes, strict=True):
            expected = turned(parts(step.config, qkv)[0], rope, positions)
            assert_close(prefill(step, qkv, [9], [0]), expected, torch.float32)


def test_padded_rows_of_queries() -> None:
    step = Step.random(configs(BASE), 3, torch.float32)
    qkv = step.qkv(12)
    packed = prefill(step, qkv, [3, 7, 2], [0, 4, 9]).clone()
    padded = prefill(step, qkv, [3, 7, 2], [0, 4, 9], is_s_padded=True).view(3, 7, 4, 64)
    kept = torch.arange(7) < torch.tensor([3, 7, 2])[:, None]
    assert torch.equal(padded[kept], packed)
    assert not padded[~kept].any()


@pytest.mark.parametrize("fp8_output", [True, False])
@pytest.mark.parametrize("planes", [True, False])
def test_8_bit_cache_and_results(planes: bool, fp8_output: bool) -> None:
    eight = {"kv_cache_dtype": compat.KvCacheDataType.FP8, "fp8_output": fp8_output}
    step = Step.random(configs(BASE, planes=planes, **eight), 2, torch.bfloat16)
    plain = Step.random(configs(BASE, planes=planes), 2, torch.bfloat16)
    plain.physical = step.physical
    qkv = step.qkv(30)
    qkv[3] *= 1000
    q, full = (prefill(s, qkv, [13, 17], [0, 0]) for s in (step, plain))
    kind = torch.float8_e4m3fn
    assert q.dtype == (kind if fp8_output else torch.bfloat16)
    for eight_bits, wide in ((step.cache.kv_cache_base, plain.cache.kv_cache_base), (q, full)):
        if eight_bits.dtype == kind:
            wide = wide.float().clamp(-448, 448).to(kind)
        assert torch.equal(eight_bits.float(), wide.float())
    packed = compat.FusedRopeKVCachePrefillOpQKVOut(step.config)
    params = packed.prepare(step.prefill([13, 17], [0, 0]))
    out = packed.forward(qkv, step.cache, params)
    assert torch.equal(parts(step.config, out)[0].float(), q.float())
    assert step.cache.kv_scale_base is not None
    assert step.cache.kv_scale_base.sum() == 2 * 30 * step.config.kv_head_num
    with pytest.raises(RuntimeError, match="expected kv_scale_base"):
        packed.forward(qkv, replace(step.cache, kv_scale_base=None), params)


@pytest.mark.parametrize("fp8", [True, False])
@pytest.mark.parametrize("paged", [True, False])
def test_the_result_is_the_buffer_that_was_written(paged: bool, fp8: bool) -> None:
    kind = torch.float8_e4m3fn if fp8 else torch.bfloat16
    cache = {"kv_cache_dtype": compat.KvCacheDataType.FP8} if fp8 else {}
    step = Step.random(configs(BASE, fp8_output=fp8, **cache), 2, torch.bfloat16)
    plain = Step.random(configs(BASE), 2, torch.bfloat16)
    qkv = step.qkv(30)
    kinds = (compat.FusedRopeKVCachePrefillOpQOut, compat.FusedRopeKVCachePrefillOpQKVOut)
    results = []
    for each in (step, plain):
        operator = kinds[0 if paged else 1](each.config)
        params = operator.prepare(each.prefill([13, 17], [0, 0]))
        params.output.view(torch.uint8).fill_(0x7F)  # not a number, of 8 bits
        results.append(operator.forward(qkv, each.cache, params))
        assert results[-1].data_ptr() == params.output.data_ptr()
        assert results[-1].numel() == params.output.numel()
    assert results[0].dtype == kind
    expected = results[1].float().clamp(-448, 448).to(kind) if fp8 else results[1]
    assert torch.equal(results[0].float(), expected.float())


@pytest.mark.parametrize(("requests", "width"), [(1, 1), (3, 7), (64, 512)])
def test_offsets_follow_the_formula(requests: int, width: int) -> None:
    table = torch.randint(0, 1000, (requests, width), dtype=torch.int32)
    table[:, width // 2 + 1 :] = 0
    interleaved = compat.convert_offset_to_block_array(table)
    planes = compat.convert_offset_to_block_array(table, 1000)
    assert interleaved.shape == planes.shape == (requests, 1, 2, width)
    assert interleaved.dtype == torch.int32
    assert torch.equal(interleaved[:, 0, 0], 2 * table)
    assert torch.equal(interleaved[:, 0, 1], 2 * table + 1)
    assert torch.equal(planes[:, 0, 1], 1000 + table)
    table[0, 0] = -1
    for num_blocks in (None, 1000):
        assert (compat.convert_offset_to_block_array(table, num_blocks)[0, 0, :, 0] == -1).all()
    with pytest.raises(ValueError, match="expected"):
        compat.convert_offset_to_block_array(table.long())
    with pytest.raises(ValueError, match="more than int32"):
        compat.convert_offset_to_block_array(
            torch.empty(2**16, 2**15, dtype=torch.int32, device="meta")
        )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"blocks": (24, 24)}, "power of two"),
        ({"blocks": (16, 32)}, "multiple of"),
        ({"heads": (4, 2, 32)}, "turn in heads of 32"),
        ({"use_logn_attn": True}, "logn_train_length"),
    ],
)
def test_impossible_configurations_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        configs(BASE, **changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dim": 63}, "even dim"),
        ({"index_factor": 2}, "three position ids"),
        ({"mrope_dim1": 5}, "add up to 32"),
        ({"mrope_dim1": 9, "mrope_dim2": 13, "mrope_interleaved": True}, "at most 11 pairs"),
    ],
)
def test_impossible_rotations_are_refused(changes: dict[str, Any], message: str) -> None:
    mrope = RopeSettings(
        RopeStyle.Mrope, 64, index_factor=3, mrope_dim1=12, mrope_dim2=10, mrope_dim3=10
    )
    with pytest.raises(ValueError, match=message):
        replace(mrope, **changes)


def test_steps_that_cannot_be_are_refused() -> None:
    step = Step.random(configs(BASE), 1, torch.float32)
    packed, alone = (
        compat.FusedRopeKVCachePrefillOpQKVOut(step.config),
        compat.FusedRopeKVCachePrefillOpQOut(step.config),
    )
    decode = compat.FusedRopeKVCacheDecodeOp(step.config)
    with pytest.raises(RuntimeError, match="cached prefix of 3 tokens"):
        packed.prepare(step.prefill([4], [3]))
    narrow = {"kv_cache_kernel_block_id_device": step.table()[:, :7]}
    with pytest.raises(RuntimeError, match=r"block table has 7 blocks of 16 for 113 tokens"):
        alone.prepare(step.prefill([4], [109], **narrow))
    with pytest.raises(RuntimeError, match=r"block table has 7 blocks of 16 for 113 tokens"):
        decode.prepare(step.decode([112], **narrow))
    with pytest.raises(RuntimeError, match="no block table"):
        params = alone.prepare(step.prefill([4], [0], kv_cache_kernel_block_id_device=None))
        alone.forward(step.qkv(4), step.cache, params)
    with pytest.raises(RuntimeError, match="keys and values would be lost"):
        alone.forward(step.qkv(4), None, alone.prepare(step.prefill([4], [0])))
    with pytest.raises(RuntimeError, match="needs a cache"):
        decode.forward(step.qkv(1), None, decode.prepare(step.decode([1])))
    with pytest.raises(RuntimeError, match="expected storage"):
        params = alone.prepare(step.prefill([4], [0]))
        alone.forward(step.qkv(4), compat.LayerKVCache(torch.empty(0)), params)
    halves = Step.random(configs(BASE, fp8_output=True), 1, torch.float16)
    with pytest.raises(RuntimeError, match="8-bit results of float16 activations"):
        compat.FusedRopeKVCacheDecodeOp(halves.config).prepare(halves.decode([1]))
    with pytest.raises(RuntimeError, match="is no prefill"):
        decode.prepare(step.prefill([1], [0]))
    with pytest.raises(RuntimeError, match=r"the cache is .*; expected"):
        alone.forward(step.qkv(4), compat.LayerKVCache(torch.zeros(2, 40, 8, 2, 64)), params)


PREFILLS = [
    compat.FusedRopeKVCachePrefillOpQOut,
    compat.FusedRopeKVCachePrefillOpQKVOut,
    compat.FusedRopeKVCachePrefillOpSplitOut,
]


@pytest.mark.parametrize("kind", PREFILLS)
@pytest.mark.parametrize("table", [True, False])
def test_positions_behind_the_rotary_table_are_refused(kind: type, table: bool) -> None:
    """Kernels leave out a token whose position has no row, so nobody would know."""
    step = Step.random(replace(configs(BASE), max_seq_len=32), 1, torch.float32)
    operator = kind(step.config)
    given = {} if table else {"kv_cache_kernel_block_id_device": None}
    operator.prepare(step.prefill([32], [0], **given))
    with pytest.raises(RuntimeError, match="a sequence of 40 tokens; max_seq_len is 32"):
        operator.prepare(step.prefill([40], [0], **given))
    # What places tokens explicitly says where they stand, however many there are.
    ids = torch.arange(40, dtype=torch.int32).cpu() % 32
    operator.prepare(step.prefill([40], [0], combo_position_ids=ids, **given))
    with pytest.raises(RuntimeError, match="position 32; max_seq_len is 32"):
        operator.prepare(step.prefill([40], [0], combo_position_ids=ids + 1, **given))


def test_a_decode_behind_the_rotary_table_is_refused() -> None:
    step = Step.random(replace(configs(BASE), max_seq_len=32), 2, torch.float32)
    operator = compat.FusedRopeKVCacheDecodeOp(step.config)
    operator.prepare(step.decode([31, 3]))
    with pytest.raises(RuntimeError, match="a sequence of 33 tokens; max_seq_len is 32"):
        operator.prepare(step.decode([3, 32]))
