"""Hugging Face checkpoints in and out, against transformers' logits and greedy replies (tests/make_checkpoints.py)."""

import dataclasses
import json
import math
import shutil
from pathlib import Path

import chex
import flax.linen as nn
import huggingface_hub
import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec
from safetensors.numpy import load_file, save_file
from several import start_several
from transformers import AutoConfig, AutoTokenizer

from hgpo_jax import adapters
from hgpo_jax.config import MeshConfig, ModelConfig
from hgpo_jax.policy import hf_layout
from hgpo_jax.policy.hf_layout import FileTensor
from hgpo_jax.policy.sampling import make_sampler, pad_prompts
from hgpo_jax.policy.tokenization import Tokenizer, train_tokenizer
from hgpo_jax.policy.transformer import Transformer, abstract_params, init_params
from hgpo_jax.policy.weights import load_params, model_config_of, resolve_checkpoint, save_checkpoint
from hgpo_jax.sharding import make_mesh, param_shardings

GOLDEN = Path(__file__).parents[1] / "golden" / "qwen"
NAMES = ["qwen2_tied", "qwen2_untied", "qwen3_tied", "qwen3_untied_bfloat16"]


def file_tensors_of(folder):
    return {k: v for path in sorted(folder.glob("*.safetensors")) for k, v in load_file(path).items()}


@pytest.fixture(scope="module", params=NAMES)
def checkpoint(request):
    folder = GOLDEN / request.param
    config = model_config_of(folder)
    with np.load(folder / "expected.npz") as archive:
        expected = dict(archive)
    return config, load_params(folder, config), expected


@pytest.fixture
def copy(tmp_path):
    """A checkpoint to damage."""
    return Path(shutil.copytree(GOLDEN / "qwen2_tied", tmp_path / "model"))


def test_logits_equal_those_of_transformers_in_separate_and_packed_rows(checkpoint):
    config, params, expected = checkpoint
    prompts = [expected[f"ids{i}"] for i in range(4)]

    @jax.jit
    def logits_of(tokens, positions, segments):
        hidden = Transformer(config).apply({"params": params}, tokens, positions, segments)[0]
        return Transformer(config).apply({"params": params}, hidden, method="unembed")

    packed = logits_of(
        jnp.asarray(np.concatenate(prompts), jnp.int32)[None],
        jnp.asarray(np.concatenate([np.arange(len(ids)) for ids in prompts]))[None],
        jnp.asarray(np.concatenate([np.full(len(ids), i + 1) for i, ids in enumerate(prompts)]))[None],
    )[0]
    chex.assert_shape(packed, (54, config.vocab_size))
    length = max(map(len, prompts))
    rows = [np.pad(ids, (0, length - len(ids))) for ids in prompts]
    real = np.stack([np.arange(length) < len(ids) for ids in prompts]).astype(np.int32)
    separate = logits_of(jnp.asarray(np.stack(rows), jnp.int32), jnp.tile(jnp.arange(length), (4, 1)), real)
    start = 0
    for i, ids in enumerate(prompts):
        theirs = expected[f"logits{i}"]
        assert np.abs(theirs).max() > 3  # far from uniform
        np.testing.assert_allclose(separate[i, : len(ids)], theirs, rtol=0, atol=1e-4)
        np.testing.assert_allclose(packed[start : start + len(ids)], theirs, rtol=0, atol=1e-4)
        start += len(ids)


@pytest.mark.slow
def test_greedy_replies_equal_those_of_transformers(checkpoint):
    """64 tokens to each of four prompts of different lengths, in one batch."""
    config, params, expected = checkpoint
    theirs = np.stack([expected[f"greedy{i}"] for i in range(4)])
    never = min(set(range(config.vocab_size)) - set(theirs.flat))  # greedy went on after end tokens
    tokens, lengths = pad_prompts([expected[f"ids{i}"] for i in range(4)], 0, 26)
    sample = make_sampler(config, [never], 0)
    out = sample(params, tokens, lengths, jax.random.split(jax.random.key(0), 4), 0, 1, 0, 64, capacity=64)
    assert len(set(lengths.tolist())) == 4
    np.testing.assert_array_equal(out.tokens, theirs)


@pytest.mark.parametrize("name", ["qwen2_tied", "qwen3_untied_bfloat16"])
@pytest.mark.parametrize("sizes", [(2, 2, 2), (1, 2, 4)], ids=str)
def test_a_mesh_gets_what_one_device_gets(name, sizes):
    """Two key/value heads on four devices along ``tensor`` are replicated."""
    config = model_config_of(GOLDEN / name)
    shardings = param_shardings(abstract_params(config), make_mesh(MeshConfig(*sizes)))
    sharded = load_params(GOLDEN / name, config, shardings)
    chex.assert_trees_all_equal(sharded, load_params(GOLDEN / name, config))
    chex.assert_trees_all_equal_shapes_and_dtypes(sharded, nn.unbox(abstract_params(config)))
    assert all(jax.tree.leaves(jax.tree.map(lambda x, s: x.sharding == s, sharded, shardings)))


def test_each_part_is_read_once_and_alone(monkeypatch):
    """What a host holds at a time is one device's part of one layer's tensor, whatever number of replicas."""
    sizes = []
    read = FileTensor.read
    monkeypatch.setattr(FileTensor, "read", lambda *args: sizes.append(read(*args).size) or read(*args))
    config = model_config_of(GOLDEN / "qwen2_tied")
    shardings = param_shardings(abstract_params(config), make_mesh(MeshConfig(2, 2, 2)))
    params = load_params(GOLDEN / "qwen2_tied", config, shardings)
    assert max(sizes) == params["embed"].size // 4
    assert sum(sizes) == sum(x.size for x in jax.tree.leaves(params))


@given(data=st.data())
def test_any_part_of_a_tensor_is_that_part_of_the_whole(data):
    """Merged axes, too, may be cut anywhere."""
    for name, ours, theirs in hf_layout.LAYOUT.values():
        shape = tuple({"D": 4, "H": 3, "Q": 2, "F": 6, "I": 5, "V": 7}[c] for c in ours)
        tensor = FileTensor("", None, name, ours, theirs, shape)
        whole = np.arange(math.prod(shape)).reshape(shape)
        stored = tensor.to_file(whole)
        assert stored.shape == tensor.file_shape
        cuts = [sorted(data.draw(st.lists(st.integers(0, n), min_size=2, max_size=2, unique=True))) for n in shape]
        index = tuple(slice(*cut) for cut in cuts)
        np.testing.assert_array_equal(tensor.read(stored, index), whole[index])
        np.testing.assert_array_equal(tensor.read(stored, (slice(None),) * len(shape)), whole)


def test_linear_maps_by_hand(copy):
    """q: rows of the file are (head, width) pairs; o: its columns are."""
    config, stored = model_config_of(copy), file_tensors_of(copy)
    params = load_params(copy, config)["layers"]["attention"]
    q, o = (stored[f"model.layers.1.self_attn.{name}_proj.weight"] for name in "qo")
    assert params["q"]["kernel"][1, 5, 3, 2] == q[3 * config.head_dim + 2, 5]
    assert params["o"]["kernel"][1, 3, 2, 5] == o[5, 3 * config.head_dim + 2]


@pytest.mark.parametrize("name", NAMES)
def test_round_trip_keeps_every_bit(name, tmp_path):
    dtype = "bfloat16" if "bfloat16" in name else "float32"
    config = model_config_of(GOLDEN / name, param_dtype=dtype)
    mesh = make_mesh(MeshConfig(2, 2)) if name == "qwen2_untied" else None
    shardings = mesh and param_shardings(abstract_params(config), mesh)
    params = load_params(GOLDEN / name, config, shardings)
    save_checkpoint(params, config, tmp_path / "out", source=GOLDEN / name, max_shard_bytes=40_000)
    assert len(list((tmp_path / "out").glob("model-*.safetensors"))) > 1
    original, written = file_tensors_of(GOLDEN / name), file_tensors_of(tmp_path / "out")
    chex.assert_trees_all_equal(original, written)
    chex.assert_trees_all_equal_shapes_and_dtypes(original, written)
    assert model_config_of(tmp_path / "out", param_dtype=dtype) == config
    again = load_params(tmp_path / "out", config)
    chex.assert_trees_all_equal(again, params)
    assert again["embed"].dtype == dtype
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == sum(x.nbytes for x in original.values())
    assert set(index["weight_map"]) == set(original)


def test_transformers_reads_what_was_written(tmp_path):
    """One file where it fits; float32 parameters may be written in bfloat16; fields of the source are kept."""
    config = model_config_of(GOLDEN / "qwen2_tied")
    params = load_params(GOLDEN / "qwen2_tied", config)
    save_checkpoint(params, config, tmp_path, source=GOLDEN / "qwen2_tied", dtype="bfloat16")
    assert [path.name for path in tmp_path.glob("*.safetensors")] == ["model.safetensors"]
    theirs = AutoConfig.from_pretrained(tmp_path)
    assert (theirs.model_type, theirs.num_key_value_heads, theirs.max_position_embeddings) == ("qwen2", 2, 512)
    assert theirs.rope_parameters["rope_theta"] == 1e6
    assert AutoTokenizer.from_pretrained(tmp_path).chat_template
    assert json.loads((tmp_path / "generation_config.json").read_text())["eos_token_id"] == [2, 0]
    stored = load_file(tmp_path / "model.safetensors")["model.norm.weight"]
    np.testing.assert_array_equal(stored, np.asarray(params["final_norm"]["scale"]).astype(ml_dtypes.bfloat16))


def test_a_model_from_scratch_is_written_with_its_word_level_tokenizer(tmp_path):
    config = ModelConfig(16, 8, 8, 1, 2, 1, 4, qkv_bias=False, qk_norm=True, tie_word_embeddings=False)
    tokenizer = Tokenizer(train_tokenizer(["go up", "go down"]))
    params = init_params(config, jax.random.key(0))
    save_checkpoint(params, config, tmp_path, tokenizer=tokenizer)
    chex.assert_trees_all_equal(load_params(tmp_path, model_config_of(tmp_path)), params)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    assert theirs.encode("go down") == tokenizer.encode("go down")
    assert (theirs.eos_token_id, theirs.pad_token_id) == (1, 0)
    with pytest.raises(ValueError, match="is not empty; name a new folder"):
        save_checkpoint(params, config, tmp_path)
    (tmp_path / "model-00001-of-00002.safetensors").touch()
    save_checkpoint(params, config, tmp_path, overwrite=True)
    assert [path.name for path in tmp_path.glob("*.safetensors")] == ["model.safetensors"]
    with pytest.raises(ValueError, match="no Hugging Face model has qkv_bias False and qk_norm False"):
        save_checkpoint(params, ModelConfig(16, 8, 8, 1, 2, 1, 4, qkv_bias=False), tmp_path / "other")
    with pytest.raises(ValueError, match="not those of the ModelConfig: layers/attention/o/kernel, "):
        save_checkpoint(params, dataclasses.replace(config, num_heads=4), tmp_path / "other")


@pytest.mark.slow
def test_adapters_are_merged_into_what_is_written(tmp_path):
    config = dataclasses.replace(model_config_of(GOLDEN / "qwen2_untied"), lora_rank=2)
    params = init_params(config, jax.random.key(0))
    params = jax.tree_util.tree_map_with_path(lambda p, x: x + 0.1 if p[-1].key == "lora_b" else x, params)
    save_checkpoint(params, config, tmp_path, source=GOLDEN / "qwen2_untied")
    written = load_params(tmp_path, config)
    chex.assert_trees_all_equal(written, adapters.merged(params, config))
    assert not np.allclose(written["layers"]["mlp"]["up"]["kernel"], params["layers"]["mlp"]["up"]["kernel"])


PUBLISHED = {  # vocabulary, hidden, MLP, layers, heads, key/value heads, tied, parameters
    "Qwen2.5-0.5B": (151936, 896, 4864, 24, 14, 2, True, 494_032_768),
    "Qwen2.5-1.5B": (151936, 1536, 8960, 28, 12, 2, True, 1_543_714_304),
    "Qwen2.5-3B": (151936, 2048, 11008, 36, 16, 2, True, 3_085_938_688),
    "Qwen2.5-7B": (152064, 3584, 18944, 28, 28, 4, False, 7_615_616_512),
    "Qwen2.5-14B": (152064, 5120, 13824, 48, 40, 8, False, 14_770_033_664),
    "Qwen2.5-32B": (152064, 5120, 27648, 64, 40, 8, False, 32_763_876_352),
    "Qwen2.5-72B": (152064, 8192, 29568, 80, 64, 8, False, 72_706_203_648),
    "Qwen3-0.6B": (151936, 1024, 3072, 28, 16, 8, True, 596_049_920),
    "Qwen3-1.7B": (151936, 2048, 6144, 28, 16, 8, True, 1_720_574_976),
    "Qwen3-4B": (151936, 2560, 9728, 36, 32, 8, True, 4_022_468_096),
    "Qwen3-8B": (151936, 4096, 12288, 36, 32, 8, False, 8_190_735_360),
    "Qwen3-14B": (151936, 5120, 17408, 40, 40, 8, False, 14_768_307_200),
    "Qwen3-32B": (151936, 5120, 25600, 64, 64, 8, False, 32_762_123_264),
}


def published_config(name):
    """config.json as the hub has it: in the style of transformers 4."""
    vocab, hidden, mlp, layers, heads, kv_heads, tied, _ = PUBLISHED[name]
    content = {
        "architectures": ["Qwen3ForCausalLM" if "Qwen3" in name else "Qwen2ForCausalLM"],
        "model_type": "qwen3" if "Qwen3" in name else "qwen2",
        "attention_dropout": 0.0,
        "bos_token_id": 151643,
        "eos_token_id": 151645,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": mlp,
        "max_position_embeddings": 32768,
        "max_window_layers": layers,
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "num_key_value_heads": kv_heads,
        "rms_norm_eps": 1e-06,
        "rope_theta": 1000000.0,
        "sliding_window": 131072,
        "tie_word_embeddings": tied,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.43.1",
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": vocab,
    }
    qwen3 = {"attention_bias": False, "head_dim": 128, "rope_scaling": None, "sliding_window": None}
    return content | (qwen3 if "Qwen3" in name else {})


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_sizes(name, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(published_config(name)))
    config = model_config_of(tmp_path)
    assert config.head_dim == (64 if name == "Qwen2.5-0.5B" else 128)
    assert (config.rope_theta, config.rms_norm_eps) == (1e6, 1e-6)
    assert config.qk_norm is not config.qkv_bias is ("Qwen2" in name)
    parameters = sum(math.prod(x.shape) for x in jax.tree.leaves(nn.unbox(abstract_params(config))))
    assert parameters == PUBLISHED[name][-1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "llama"}, "model_type is 'llama'; supported are qwen2, qwen3"),
        ({"model_type": "qwen3_moe"}, "model_type is 'qwen3_moe'"),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "rope_scaling is of type 'yarn', which is not supported"),
        ({"rope_parameters": {"rope_type": "linear", "factor": 2.0}}, "rope_parameters is of type 'linear'"),
        ({"use_sliding_window": True}, "use_sliding_window is True; supported is False"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types are"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'; supported is 'silu'"),
        ({"attention_bias": True, "model_type": "qwen3"}, "attention_bias is True"),
        ({"quantization_config": {"bits": 4}}, "quantized weights are not supported"),
        ({"hidden_size": None}, "hidden_size is None, expected a positive integer"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0, expected a positive integer"),
    ],
    ids=str,
)
def test_configs_that_are_refused(tmp_path, changes, message):
    (tmp_path / "config.json").write_text(json.dumps(published_config("Qwen2.5-0.5B") | changes))
    with pytest.raises(ValueError, match=message):
        model_config_of(tmp_path)


def test_configs_of_both_styles_and_their_defaults(tmp_path):
    """transformers 5 puts theta into rope_parameters; what is left out is what transformers' classes take."""
    content = published_config("Qwen3-8B")
    new = {k: v for k, v in content.items() if k != "rope_theta"} | {"rope_parameters": {"rope_theta": 5e5}}
    (tmp_path / "config.json").write_text(json.dumps(new))
    config = model_config_of(tmp_path, attention="blockwise", param_dtype="bfloat16")
    assert (config.rope_theta, config.attention, config.param_dtype) == (5e5, "blockwise", "bfloat16")
    left_out = ("rope_theta", "head_dim", "num_key_value_heads", "tie_word_embeddings", "rms_norm_eps", "hidden_act")
    (tmp_path / "config.json").write_text(json.dumps({k: v for k, v in content.items() if k not in left_out}))
    config = model_config_of(tmp_path)
    assert (config.rope_theta, config.head_dim, config.num_kv_heads) == (1e4, 128, 32)
    assert not config.tie_word_embeddings
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json is damaged"):
        model_config_of(tmp_path)


def test_every_tensor_that_does_not_fit_is_listed_in_one_error(copy):
    shard = copy / "model-00002-of-00003.safetensors"
    tensors = load_file(shard)
    lost, cut = sorted(tensors)[:2]
    del tensors[lost]
    tensors[cut] = tensors[cut][:1]
    save_file(tensors | {f"extra{i}": np.zeros(2) for i in range(9)}, shard)
    with pytest.raises(ValueError, match="are not those of its config") as error:
        load_params(copy, model_config_of(copy))
    assert f"1 missing: {lost};" in str(error.value)
    assert "9 extra: extra0, extra1, extra2, extra3, extra4, extra5, extra6, extra7 and 1 more;" in str(error.value)
    assert f"1 misshapen: {cut} F32 [1" in str(error.value)


def test_damaged_and_absent_files_are_named(copy):
    config = model_config_of(copy)
    shard = copy / "model-00002-of-00003.safetensors"
    shard.write_bytes(shard.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"model-00002-of-00003\.safetensors is damaged, fetch it again"):
        load_params(copy, config)
    shard.unlink()
    with pytest.raises(ValueError, match=r"names model-00002-of-00003\.safetensors, absent from"):
        load_params(copy, config)
    (copy / "model.safetensors.index.json").write_text('{"weight_map": 3}')
    with pytest.raises(ValueError, match="has no weight_map"):
        load_params(copy, config)
    (copy / "model.safetensors.index.json").unlink()
    with pytest.raises(ValueError, match=r"holds no weights: expected model\.safetensors"):
        load_params(copy, config)
    with pytest.raises(ValueError, match=r"config\.json is missing"):
        model_config_of(copy.parent)


def test_a_tied_checkpoint_may_hold_its_table_twice(copy):
    """Qwen3-0.6B does. Buffers of old exports are passed over, too."""
    config = model_config_of(copy)
    tensors = file_tensors_of(copy)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.zeros(4, np.float32)
    save_file(tensors, copy / "model.safetensors")
    chex.assert_trees_all_equal(load_params(copy, config), load_params(GOLDEN / "qwen2_tied", config))
    tensors["lm_head.weight"][7, 3] += 1
    save_file(tensors, copy / "model.safetensors")
    with pytest.raises(ValueError, match=r"differs from the embeddings .* tie_word_embeddings to false"):
        load_params(copy, config)


@pytest.mark.parametrize("dtype", [np.float16, np.float64, ml_dtypes.bfloat16], ids=lambda d: np.dtype(d).name)
def test_other_floats_become_the_parameters_dtype(copy, dtype):
    config = model_config_of(copy)
    tensors = {name: x.astype(dtype) for name, x in file_tensors_of(copy).items()}
    save_file(tensors, copy / "model.safetensors")
    params = load_params(copy, config)
    chex.assert_trees_all_equal_dtypes(params, init_params(config, jax.random.key(0)))
    np.testing.assert_array_equal(params["embed"], tensors["model.embed_tokens.weight"].astype(np.float32))


def test_names_become_folders(tmp_path, monkeypatch):
    assert resolve_checkpoint(tmp_path) == tmp_path
    with pytest.raises(ValueError, match=r"neither a folder nor a hub id .*'hf download OWNER/NAME --local-dir DIR"):
        resolve_checkpoint(tmp_path / "absent")
    asked = []

    def download(name, **options):
        asked.append((name, options["allow_patterns"]))
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert resolve_checkpoint("Qwen/Qwen2.5-0.5B") == tmp_path
    assert asked == [("Qwen/Qwen2.5-0.5B", ["*.json", "*.safetensors", "*.txt", "*.jinja"])]


def test_a_hub_out_of_reach_names_the_command(monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ValueError, match="'hf download Qwen/none --local-dir DIR' where there is a network"):
        resolve_checkpoint("Qwen/none")


def test_a_sharding_over_layers_works_too():
    """Not what the table of shardings gives, but nothing forbids it."""
    config = model_config_of(GOLDEN / "qwen2_untied")
    mesh = make_mesh(MeshConfig(2))
    replicated = NamedSharding(mesh, PartitionSpec())
    shardings = jax.tree.map(lambda _: replicated, nn.unbox(abstract_params(config)))
    shardings["layers"]["mlp"]["up"]["kernel"] = NamedSharding(mesh, PartitionSpec("data"))
    params = load_params(GOLDEN / "qwen2_untied", config, shardings)
    chex.assert_trees_all_equal(params, load_params(GOLDEN / "qwen2_untied", config))


TOGETHER = """
import sys
from pathlib import Path
import jax, numpy as np, pytest
from hgpo_jax import adapters
from hgpo_jax.config import MeshConfig
from hgpo_jax.policy.transformer import abstract_params
from hgpo_jax.policy.weights import load_params, model_config_of, save_checkpoint
from hgpo_jax.sharding import make_mesh, param_shardings

source, out, address, count, me = *map(Path, sys.argv[1:3]), sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
jax.distributed.initialize(address, count, me)
config = model_config_of(source)
params = load_params(source, config, param_shardings(abstract_params(config), make_mesh(MeshConfig(1, 2, 2))))
assert not params["embed"].is_fully_addressable
save_checkpoint(params, config, out, source=source, max_shard_bytes=40_000)
again = load_params(out, config)
total = jax.jit(lambda tree: sum(abs(x).sum() for x in jax.tree.leaves(tree)))
np.testing.assert_allclose(total(params), total(again), rtol=1e-5)
with pytest.raises(ValueError, match="is not empty"):  # in both processes
    save_checkpoint(params, config, out, source=source)
"""


@pytest.mark.slow
def test_two_processes_load_and_save_together(tmp_path):
    source = GOLDEN / "qwen2_tied"
    with start_several(2, 2, "-c", TOGETHER, str(source), str(tmp_path / "out"), options=False) as processes:
        assert processes.wait(120) == [0, 0], processes.outputs()
    chex.assert_trees_all_equal(file_tensors_of(tmp_path / "out"), file_tensors_of(source))
