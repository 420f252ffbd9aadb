"""Seconds of one micro-batch in one layer, and in the head, of one rank, by kind of work, for columns of plans.

A roofline with an efficiency that depends on the shapes a rank sees (`rates`): matrix products at a share of the
sustained rate that falls as their sides get narrow, everything else at a share of the memory's bandwidth, and
collectives over the links. Launching is counted beside it: a layer cannot be faster than the host that launches it, and
a CPU does not compute while it launches. Of ranks that share the experts the fullest one counts, for all wait for it.
Where layers are of several kinds (`model.layer_kinds`), each has its own time. Not modelled: congestion beyond a
constant, other jobs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt

from meshtune.search_spaces.cluster import DeviceKind
from meshtune.search_spaces.columns import CONTEXTS, RECOMPUTES, FloatColumn, expert_tp
from meshtune.search_spaces.layer_shapes import CutSide, Product
from meshtune.search_spaces.model import ModelSpec, Position, last_kind, layer_kinds
from meshtune.search_spaces.physics.activations import expert_load, repeated_products
from meshtune.search_spaces.physics.constants import Constants
from meshtune.search_spaces.physics.framework_profiles import FEWER_BITS, FEWEST_CHUNK_TOKENS
from meshtune.search_spaces.physics.held import layer_weights
from meshtune.search_spaces.physics.network import Network
from meshtune.search_spaces.physics.rates import BACKWARD_LAUNCHES, Rates
from meshtune.search_spaces.physics.recipes import adapted, base_bytes, casts_inputs, trained_layers, trained_share
from meshtune.search_spaces.physics.training import Training
from meshtune.search_spaces.plan import ContextParallel, Recompute, Selective
from meshtune.search_spaces.recipe import Recipe

# Over the scores where attention is not fused: product, mask, softmax, dropout, product (Dao et al. 2022, section 2.2).
SCORE_PASSES = 7
# Fused attention computes its scores again in the backward pass: 2.5 forward passes (Dao 2023, section 3.1).
FUSED_BACKWARD = 2.5
# The launching host and the device overlap: the longer one decides. A high power is a maximum with a rounded corner.
CORNER = 8
# Reads and writes of copies of tokens from other ranks, to order them by expert and back: a third of 2 each forward, 2
# or 3 each backward (Megatron's sort_chunks_by_idxs, torchtitan's _permute).
EXCHANGED_PASSES = 3
# The work of a product's two passes in units of the forward one's: its backward pass has two products, of a frozen
# weight one.
PASSES, FROZEN_PASSES = np.array([[1.0], [2.0]]), np.array([[1.0], [1.0]])
# The time in which weights of fewer bits are made wider, in units of their bytes'. bitsandbytes 0.41 on an A100 of
# 1.6 TB/s: 0.079 and 0.19 s of a micro-batch for 7 and 13 billion weights, forward and backward (LitGPT's resource
# tables, NF4 against none).
WIDENING = 3
# Kernels beside a frozen product that its adapter adds forward (dropout, cast, two products, scale, sum), as a share of
# those of a layer of transformers with seven products, some 45; and bytes forward of values that it reads and writes:
# of the input the cast to float32 and back, of the output a scale and a sum, all in 16 bits.
ADAPTER_LAUNCHES, CAST_BYTES, SUM_BYTES = 6 / 45, 12, 10


@dataclass(frozen=True, slots=True)
class LayerTime:
    """Seconds of one micro-batch in one layer of one rank, forward and backward. compute holds the wait for launches.
    weights: the share of it that the gradients of weights take, which zero-bubble schedules move."""

    compute: FloatColumn
    weights: FloatColumn
    recompute: FloatColumn
    tp: FloatColumn
    cp: FloatColumn
    ep: FloatColumn

    @property
    def total(self) -> FloatColumn:
        return self.compute + self.recompute + self.tp + self.cp + self.ep


def summed(layers: Sequence[LayerTime], counts: FloatColumn) -> LayerTime:
    """Of so many layers of each kind (kinds x plans)."""
    parts = (field.name for field in fields(LayerTime))
    return LayerTime(
        **{
            part: sum(count * getattr(layer, part) for count, layer in zip(counts, layers, strict=True))
            for part in parts
        }
    )


@dataclass(frozen=True, slots=True)
class Rank:
    """One rank's share of the work. columns: the plans' columns, as floats."""

    training: Training
    columns: Mapping[str, FloatColumn]
    constants: Constants
    network: Network

    @property
    def rates(self) -> Rates:
        return Rates(self.training.cluster.device, self.training.framework, self.constants)

    @property
    def tokens(self) -> FloatColumn:
        """Tokens of one micro-batch on one rank."""
        return self.columns["micro_batch_size"] * self.training.model.seq_len / self.columns["cp"]

    @property
    def routed(self) -> FloatColumn:
        """Copies of tokens of one micro-batch in the feed-forward block, on the fullest rank of ep."""
        model = self.training.model
        if model.experts == 0:
            return self.tokens
        load = expert_load(model, self.training.framework, self.columns, self.constants)
        return self.tokens * model.top_k * load * self.block_tp / self.columns["tp"]

    @property
    def block_tp(self) -> FloatColumn:
        """Over how many ranks the feed-forward block's width is cut."""
        ranks: FloatColumn = expert_tp(self.columns) if self.training.model.experts else self.columns["tp"]
        return ranks

    @property
    def split(self) -> FloatColumn:
        """Over how many ranks the tokens between the blocks are split."""
        return np.where(self.columns["sequence_parallel"] > 0, self.columns["tp"], 1.0)

    @property
    def recipe(self) -> Recipe:
        return self.training.recipe

    @property
    def passes(self) -> npt.NDArray[np.float64]:
        """Of products with the layers' own weights, in the mean over the layers of the last stage, which trains the
        most of them."""
        recipe, c = self.recipe, self.columns
        if recipe.adapter is not None:
            return FROZEN_PASSES
        if recipe.frozen_layers == 0:
            return PASSES
        frozen = 1 - trained_share(self.training.model, recipe, c, c["pp"] - 1)
        return np.stack([np.ones_like(frozen), 2 - frozen * (1.0 + recipe.frozen_embedding)])

    @property
    def layer_weights(self) -> FloatColumn:
        """Of one layer, where all layers are alike."""
        weights: FloatColumn = np.sum(self.weights(trained=False), axis=(0, 1))
        return weights

    def weights(self, *, trained: bool) -> tuple[FloatColumn, FloatColumn]:
        """Of a layer of each kind (kinds x plans): those that all replicas hold alike but norms', and experts'.
        trained: only these, in the mean over the last stage's layers."""
        c, model = self.columns, self.training.model
        dense, experts = layer_weights(model, c)
        every = dense - [[kind.layer_norm_parameters] for _, kind in layer_kinds(model)], experts
        return trained_layers(model, self.recipe, c, c["pp"] - 1, every) if trained else every

    def head_s(self) -> FloatColumn:
        """Forward and backward through the output projection and the loss, on the last stage, and again for each
        further token that is predicted."""
        model, framework = self.training.model, self.training.framework
        logits = self.tokens * framework.padded_vocab(model, self.columns["tp"]) / self.columns["tp"]
        traffic = framework.logit_passes * logits * framework.logit_bytes
        flops, rates = 2 * logits * model.hidden, self.rates
        backward = 2 if self.recipe.trains_head else 1
        # In 16 bits where the layers' products are in fewer (Micikevicius et al. 2022).
        per_s = rates.reached("matmul_efficiency", None, rates.sustained(framework.dtype))
        head: FloatColumn = (1 + backward) * flops / per_s + traffic / rates.loss_bytes_per_s
        if rates.measured.products and not rates.fewer_bits:
            chunks = max(1, framework.kept.loss_chunks)
            chunk = np.maximum(np.minimum(self.tokens, FEWEST_CHUNK_TOKENS), self.tokens / chunks)
            forward, again = rates.product_per_s(chunk, model.hidden, logits / self.tokens)
            head = flops / forward + backward * flops / again + traffic / rates.loss_bytes_per_s
        return head * (1 + model.mtp_layers)

    def further_s(self) -> FloatColumn:
        """Forward and backward through what predicts further tokens: each a layer and a projection of two hidden
        states, all counted as computing."""
        model = self.training.model
        if model.mtp_layers == 0:
            return np.zeros_like(self.tokens)
        projection = self._product_s(Product(2 * model.hidden, model.hidden, CutSide.OUTPUTS), self.tokens).sum(axis=0)
        further: FloatColumn = model.mtp_layers * (self._of(last_kind(model))._layer().total + projection)
        return further

    def layers(self) -> list[LayerTime]:
        """Of a layer of each kind, in the order of `model.layer_kinds`."""
        return [kind._layer() for kind in self._kinds()]

    def _kinds(self) -> list[Rank]:
        return [self._of(kind) for _, kind in layer_kinds(self.training.model)]

    def _of(self, kind: ModelSpec) -> Rank:
        """The same rank with layers of one kind."""
        return replace(self, training=replace(self.training, model=kind))

    def _layer(self) -> LayerTime:
        c, framework, constants = self.columns, self.training.framework, self.constants
        full = (c["recompute"] == RECOMPUTES.index(Recompute.FULL)) / c["recompute_interval"]
        selective = (c["recompute"] == RECOMPUTES.index(Recompute.SELECTIVE)) / c["recompute_interval"]
        (products, gradients), other = self._products_s(), self._elementwise_s()
        attention, attention_gradients = self._attention_s()
        # Gradients are added to those of earlier micro-batches.
        trained = np.sum(self.weights(trained=True), axis=(0, 1)) * (not framework.fused_accumulation)
        added_per_s = self.rates.bandwidth / (2 * (framework.weight_bytes + framework.gradient_bytes))
        known = self.rates.measured.accumulated_per_s
        accumulation = trained / self.rates.reached("memory_efficiency", known, added_per_s)
        beside, beside_other = self._adapters_s()
        products, gradients, other = products + beside[0], gradients + beside[1], other + beside_other
        compute = products + gradients + 3 * other + attention + attention_gradients + accumulation
        recompute = full * (products + other + attention) + selective * self._selective_s(attention, other)
        cp = self._context_s(attention + attention_gradients, full, selective)
        tp, ep = self._tensor_s(full, products, gradients), self._experts_s(full, compute)
        busy = compute + recompute + tp + cp + ep
        by_product = framework.kept.selective is not Selective.ATTENTION
        again = full * framework.full_launches + selective * by_product * framework.selective_launches
        more = ADAPTER_LAUNCHES * len(adapted(self.training.model, self.recipe)) * (not framework.compiled)
        launching = self.rates.launch_s * (1 + more) * (1 + again / (1 + BACKWARD_LAUNCHES))
        # A layer's collectives are late, hop by hop, while transfers of a pipeline between nodes are under way.
        devices = c["tp"] * c["cp"] * c["dp"] * c["pp"]
        stalls = (c["tp"] > 1) & (c["pp"] > 1) & (devices > self.training.cluster.domain)
        hops_s = (10 + 4 * full) * c["tp"] * framework.pipeline_hop_s
        launching = launching + constants.launch_factor * np.where(stalls, hops_s, 0.0)
        on_host = self.training.cluster.device.kind is DeviceKind.CPU
        waiting = launching if on_host else (busy**CORNER + launching**CORNER) ** (1 / CORNER) - busy
        weights = gradients * (1 - 1 / np.maximum(1.0, self.passes[1])) + accumulation
        return LayerTime(compute + waiting, weights, recompute, tp, cp, ep)

    def _adapters_s(self) -> tuple[FloatColumn, FloatColumn]:
        """The adapters' products, forward and in a second row backward; and, forward, the traffic of what they cast, of
        their results' sums, and of weights that are made of fewer bits for each pass. DoRA's magnitudes are left
        out, but for reading the weights once more (PEFT, tuners/lora/dora.py)."""
        model, framework, recipe, tp = self.training.model, self.training.framework, self.recipe, self.columns["tp"]
        seconds, traffic = np.zeros((2, 1)), np.zeros_like(self.tokens)
        if recipe.adapter is None:
            return seconds, traffic
        casts, rank = casts_inputs(framework, recipe.adapter), recipe.adapter.rank
        for _, product, times in adapted(model, recipe):
            rows, cut = (self.tokens, tp) if times == 1 else (self.routed, self.block_tp)
            down = CutSide.INPUTS if product.cut is CutSide.INPUTS else CutSide.WHOLE
            up = CutSide.OUTPUTS if product.cut is CutSide.OUTPUTS else CutSide.WHOLE
            seconds = seconds + self._product_s(Product(product.inputs, rank, down), rows, cut, PASSES)
            seconds = seconds + self._product_s(Product(rank, product.outputs, up), rows, cut, PASSES)
            inputs = product.inputs / (1.0 if down is CutSide.WHOLE else cut)
            outputs = product.outputs / (1.0 if up is CutSide.WHOLE else cut)
            traffic = traffic + rows * (CAST_BYTES * casts * inputs + SUM_BYTES * outputs)
            traffic = traffic + 2 * product.parameters / cut * framework.activation_bytes * recipe.adapter.dora
        own, _ = base_bytes(recipe, framework)
        if own < framework.activation_bytes:
            traffic = traffic + WIDENING * 2 / 3 * self.layer_weights * (own + framework.activation_bytes)
        return seconds, traffic / self.rates.layer_bytes_per_s(self.tokens)

    def _products_s(self) -> FloatColumn:
        """The matrix products with weights, forward, and in a second row backward. Those that tensor parallelism leaves
        whole run on the tokens that a rank has between the blocks."""
        model = self.training.model
        attention = self._of_attention_s(model.attention_products)
        block = self._of_block_s(model.block_products(model.ffn))
        shared = sum(self._product_s(product, self.tokens) for product in model.block_products(model.shared_ffn))
        router = self.passes * 2 * self.tokens * model.hidden * model.experts / self.rates.products_per_s
        return attention + block + shared + router

    def _of_attention_s(self, products: Sequence[Product]) -> FloatColumn:
        split = {CutSide.WHOLE: self.split}
        return sum((self._product_s(one, self.tokens / split.get(one.cut, 1.0)) for one in products), np.zeros((2, 1)))

    def _of_block_s(self, products: Sequence[Product]) -> FloatColumn:
        """Of the feed-forward block, or of all experts on this rank."""
        experts, routed = self.training.model.experts, self.routed
        rows = routed * self.columns["ep"] / experts if experts else routed  # that meet one weight at once
        return sum((self._product_s(one, rows, self.block_tp) for one in products), np.zeros((2, 1))) * routed / rows

    def _selective_s(self, attention: FloatColumn, other: FloatColumn) -> FloatColumn:
        """Forward, what selective recomputation repeats. A block's last product is repeated by nobody: its result is
        needed by nothing in the backward pass."""
        framework = self.training.framework
        if framework.kept.selective is Selective.ATTENTION:
            return attention
        of_attention, of_block = repeated_products(self.training.model, framework)
        block = [product for product in of_block if product.cut is CutSide.OUTPUTS]
        reading = self.layer_weights * framework.transfer_bytes / self.rates.layer_bytes_per_s(self.tokens)
        repeated: FloatColumn = (self._of_attention_s(of_attention) + self._of_block_s(block))[0]
        return other - reading + repeated

    def _product_s(
        self,
        product: Product,
        rows: FloatColumn,
        cut: FloatColumn | None = None,
        passes: npt.NDArray[np.float64] | None = None,
    ) -> FloatColumn:
        """One product with a weight, forward, and in a second row those of its backward pass. cut: over how many ranks,
        None: tp. passes: None: the layers' own weights'."""
        tp = self.columns["tp"] if cut is None else cut
        inputs = product.inputs / (tp if product.cut is CutSide.INPUTS else 1.0)
        outputs = product.outputs / (tp if product.cut is CutSide.OUTPUTS else 1.0)
        work = 2 * rows * inputs * outputs / self.rates.product_per_s(rows, inputs, outputs)
        seconds: FloatColumn = (self.passes if passes is None else passes) * work
        return seconds

    def _elementwise_s(self) -> FloatColumn:
        """Forward, the traffic of norms, residuals, activations, copies for experts, and of reading the weights."""
        model, framework, c = self.training.model, self.training.framework, self.columns
        inner = self.routed * model.ffn / self.block_tp + self.tokens * model.shared_ffn / c["tp"]
        gated = model.activation.matrices == 3
        block = (framework.gated_passes if gated else framework.plain_passes) * inner
        passes = framework.hidden_passes + framework.rotary_passes * (model.position is Position.ROPE)
        sorting = framework.copy_passes + EXCHANGED_PASSES * (c["ep"] * self.block_tp > c["tp"])
        copies = self.routed * sorting * model.hidden * (model.experts > 0)
        values = self.tokens * passes * model.hidden / self.split + block + copies
        traffic: FloatColumn = values * framework.activation_bytes + self.layer_weights * framework.transfer_bytes
        return (traffic + self._cast_bytes() / 3) / self.rates.layer_bytes_per_s(self.tokens)

    def _cast_bytes(self) -> FloatColumn:
        """Forward and backward, of casting to the products' 8 or 4 bits: what each reads, and the gradient of what it
        returns, is read once and written by rows and by columns, before it is gathered (Transformer Engine,
        pytorch/module/linear.py; torchao's Float8Linear). Weights, once a step, are not counted."""
        model, c, dtype = self.training.model, self.columns, self.rates.product_dtype
        if dtype not in FEWER_BITS:
            return np.zeros_like(self.tokens)
        blocks = (
            (self.tokens, self.split, c["tp"], model.attention_products),
            (self.routed, 1.0 if model.experts else self.split, self.block_tp, model.block_products(model.ffn)),
            (self.tokens, self.split, c["tp"], model.block_products(model.shared_ffn)),
        )
        values = np.zeros_like(self.tokens)
        for rows, split, cut, (*first, last) in (block for block in blocks if block[-1]):
            between = sum(product.outputs for product in first) + last.inputs
            values = values + rows * (2 * model.hidden / split + between / cut)
        return values * (self.training.framework.activation_bytes + 2 * FEWER_BITS[dtype])

    def _attention_s(self) -> FloatColumn:
        """The products with the scores, forward, and in a second row backward. Causal masking halves them, and a
        window of w of s tokens leaves w (2 s - w) / s^2 of that, only where they are fused."""
        model, c = self.training.model, self.columns
        flops = 2 * self.tokens * model.seq_len * (model.query_width + model.answer_width) / c["tp"]
        if self.training.framework.fused_attention:
            window = min(model.window or model.seq_len, model.seq_len) / model.seq_len
            seen = window * (2 - window)
            head_dim = (model.query_width + model.answer_width) / (2 * model.heads)
            forward, backward = self.rates.attention_per_s(head_dim, seen * model.seq_len)
            flops = flops / 2 * seen
            return np.stack([flops / forward, FUSED_BACKWARD * flops / backward])
        scores = self.tokens * model.seq_len * model.heads / c["tp"]
        traffic = SCORE_PASSES * scores * self.training.framework.activation_bytes
        return PASSES * (flops / self.rates.products_per_s + traffic / self.rates.bytes_per_s)

    def _tensor_s(self, full: FloatColumn, products: FloatColumn, gradients: FloatColumn) -> FloatColumn:
        """Two all-reduces forward and two backward (Shoeybi et al. 2019), two more where the forward pass is repeated.
        With sequence parallelism each is a gather and a scatter of the same bytes, and the backward pass gathers each
        block's input once more (Korthikanti et al. 2022, 4.2.2); what products in 8 or 4 bits read is gathered in
        these (`_cast_bytes`). Then experts gather over their own ranks the copies of tokens that each of these got, and
        scatter the answers (Megatron-LM d98e8a64, core/transformer/moe/token_dispatcher.py). products, gradients:
        seconds of the products of both blocks, forward and backward, beside which a code may gather and reduce."""
        model, framework, tp = self.training.model, self.training.framework, self.columns["tp"]
        size, parted = model.hidden * framework.transfer_bytes, self.split > 1
        scatter = self.network.gather_s(self.tokens * size, tp, 1.0)
        cast = FEWER_BITS.get(self.rates.product_dtype, framework.transfer_bytes) / framework.transfer_bytes
        gather = scatter
        if cast != 1:
            gather = np.where(parted, self.network.gather_s(self.tokens * size * cast, tp, 1.0), scatter)
        forward, backward, again = scatter + gather, scatter + gather, np.where(parted, gather, 0.0)
        if framework.overlaps_tensor_forward:
            forward = np.where(parted, self.exposed_s(forward, products / 2), forward)
            backward, again = backward + again, np.zeros_like(again)
        backward = self.exposed_s(backward, gradients / 2) if framework.overlaps_tensor else backward
        one = (1 + full) * forward + backward + again
        if model.experts == 0:
            return np.where(tp > 1, 2 * one, 0.0)
        copies = self.network.gather_s(self.routed * size, self.block_tp, 1.0)
        dispatched = (4 + 2 * full) * copies + (one if model.shared_ffn else 0.0)
        block = np.where(parted, dispatched, one)
        return np.where(tp > 1, one + block, np.where(self.block_tp > 1, dispatched, 0.0))

    def _context_s(self, attention: FloatColumn, full: FloatColumn, selective: FloatColumn) -> FloatColumn:
        """Keys and values of all ranks, gathered forward and backward, and their gradients scattered; the ring hides
        what it can behind attention, of both passes; Ulysses exchanges heads for sequence (Jacobs et al. 2023). A
        forward pass that is repeated repeats its own, and selective recomputation the gathers as well; of attention,
        the exchanges."""
        model, c, width = self.training.model, self.columns, self.training.framework.transfer_bytes
        if np.all(c["cp"] == 1):
            return np.zeros_like(attention)
        keys = model.kv_width + model.value_width
        kept = self.tokens * c["cp"] * keys / c["tp"] * width
        gather = (3 + full + selective) * self.network.gather_s(kept, c["cp"], c["tp"])
        ring = self.exposed_s(gather, attention)
        moved = self.tokens * (model.query_width + model.answer_width + keys) / c["tp"] * width
        again = selective * (self.training.framework.kept.selective is Selective.ATTENTION)
        exchange = (2 + full + again) * self.network.all_to_all_s(moved, c["cp"], c["tp"])
        kinds = {ContextParallel.ALL_GATHER: gather, ContextParallel.ULYSSES: exchange, ContextParallel.RING: ring}
        chosen = np.select([c["context"] == CONTEXTS.index(kind) for kind in kinds], list(kinds.values()))
        return np.where(c["cp"] > 1, chosen, 0.0)

    def _experts_s(self, full: FloatColumn, compute: FloatColumn) -> FloatColumn:
        """All-to-all before and after the experts, forward and backward (Lepikhin et al. 2020). compute: the layer's
        work of another micro-batch, beside which they may run."""
        model, framework, c = self.training.model, self.training.framework, self.columns
        if model.experts == 0 or np.all(c["ep"] == 1):
            return np.zeros_like(full)
        size = self.routed * c["tp"] / self.block_tp / self.split * model.hidden * framework.transfer_bytes
        copies = model.top_k if framework.dispatches_by_node else 1
        one = self.network.all_to_all_s(size, c["ep"], self.block_tp, copies)
        exchanges = (4 + 2 * full) * one
        shown = self.exposed_s(exchanges, compute) if framework.overlaps_experts else exchanges
        return np.where(c["ep"] > 1, shown, 0.0)

    def exposed_s(self, transfer: FloatColumn, window: FloatColumn) -> FloatColumn:
        """Seconds that a transfer beside `window` seconds of work adds: a share, and the excess over the window."""
        shown = np.minimum(self.constants.exposed_reduction, 1.0)
        result: FloatColumn = shown * transfer + np.maximum(0.0, (1 - shown) * transfer - window)
        return result
