"""What is not priced, and why: fields that give a model other layers, and families of such layers."""

UNPRICED = {
    "is_encoder_decoder": "an encoder and cross-attention",
    "cross_attention_layers": "cross-attention layers",
    "linear_attn_config": "linear-attention layers",
    "linear_num_key_heads": "linear-attention layers",
    "full_attention_interval": "linear-attention layers",
    "attn_type_list": "layers of several kinds of attention",
    "hybrid_override_pattern": "state-space layers",
    "layers_block_type": "state-space layers",
    "attn_layer_period": "state-space layers",
    "mamba_d_state": "state-space layers",
    "mamba_d_ssm": "state-space layers",
    "ssm_cfg": "state-space layers",
    "state_size": "state-space layers",
    "block_types": "recurrent layers",
    "num_kv_shared_layers": "layers that share keys and values",
    "num_kv_shared_layer": "layers that share keys and values",
    "use_cla": "layers that share keys and values",
    "index_topk": "sparse attention that chooses its keys",
    "sparse_attention_config": "sparse attention that chooses its keys",
    "attention_chunk_size": "chunked local attention",
    "block_configs": "layers of different sizes",
    "moe_num_experts": "routed experts",
    "n_routed_experts": "routed experts",
    "num_local_experts": "routed experts",
    "num_experts": "routed experts",
    "kv_lora_rank": "latent attention",
}
"""Fields that give a model layers of another kind, where its family does not have them."""
OWN = {
    "ernie4_5_moe": {"moe_num_experts"},
    "llama4_text": {"attention_chunk_size"},
    "granitemoehybrid": {"mamba_d_state"},
}
"""What a family has of these beside experts and latents, which its entry says itself."""
NONE_IF_NULL = ("attention_chunk_size",)
"""Where null stands for none, and not for the default."""

LINEAR = "most of its layers have linear attention"
STATE_SPACE = "it has state-space layers"
SPARSE = "its attention chooses the keys it reads"
NO_GATE = "its MLPs have no gate"
REASONS = {
    "llama4": "its layers are those of its text_config, which is missing",
    "qwen3_next": "three of four layers have linear attention",
    "bert": "it is an encoder",
    "t5": "it has an encoder and cross-attention",
    "whisper": "it has an encoder and cross-attention",
    "longcat_flash": "each of its layers holds two attentions",
    "step3_text": "its attention factorises queries",
    "dbrx": "its sizes stand in attn_config and ffn_config",
    "grok-1": "it has no config.json of the usual fields",
    "arctic": "its experts stand beside a dense MLP of another width",
    **dict.fromkeys(("mllama", "mllama_text_model"), "it has cross-attention layers"),
    **dict.fromkeys(
        ("deepseek_v32", "deepseek_v4", "glm_moe_dsa", "minimax_m3", "minimax_m3_vl_text"), SPARSE
    ),
    **dict.fromkeys(("gemma3n", "gemma3n_text"), "some of its layers share keys and values"),
    **dict.fromkeys(("gemma4", "gemma4_text"), "its layers have heads of two sizes"),
    **dict.fromkeys(("mimo_v2_flash", "mimo_v2"), "its keys and values have heads of different sizes"),
    "step3p5": "its windowed layers have another number of heads",
    **dict.fromkeys(("deci", "nemotron-nas"), "its layers are of different sizes"),
    **dict.fromkeys(("lfm2", "lfm2_moe"), "it has convolution layers"),
    **dict.fromkeys(("mamba", "mamba2", "falcon_mamba"), "its layers are state-space layers"),
    **dict.fromkeys(("jamba", "bamba", "nemotron_h", "zamba", "zamba2", "falcon_h1", "plamo2"), STATE_SPACE),
    **dict.fromkeys(("phi4flash", "hymba"), STATE_SPACE),
    **dict.fromkeys(("rwkv", "recurrent_gemma"), "it has recurrent layers"),
    **dict.fromkeys(("minimax", "minimax_text_01", "minimax_m1"), "it has linear-attention layers"),
    **dict.fromkeys(("qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text", "kimi_linear"), LINEAR),
    **dict.fromkeys(("gpt2", "gptj", "gpt_neo", "gpt_neox", "gpt_bigcode", "opt", "bloom", "mpt"), NO_GATE),
    **dict.fromkeys(("falcon", "phi", "starcoder2", "nemotron", "arcee", "apertus", "persimmon"), NO_GATE),
}
"""Why a family that may be asked for is not priced."""
