"""Text, tokens and conversations equal those that transformers makes from the same folder."""

import json
import random
import shutil
import subprocess
import sys
from pathlib import Path

import jinja2
import pytest
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from sundog.actors.front.foreign import ForeignFailure
from sundog.actors.messages import PLAIN_READING, ChatMessage, Reading
from sundog.runtime.checkpoint.facts import LoadError
from sundog.runtime.serve import EMBEDDED_MODEL
from sundog.runtime.text.chat_template import compiled, rendered
from sundog.runtime.text.tokenizer import ChatTemplateError, Tokenizer

TEXT = "Grüße aus Köln! 日本語のテキスト, emoji 🌞🧑‍🚀 and plain words.\n\n  def f(x): return x"
TEMPLATE = """\
{%- if messages[0].role == 'tool' %}
    {{- raise_exception('no tools here') }}
{%- endif %}
{{- bos_token }}
{%- for message in messages %}
    {%- if message['role'] == 'assistant' %}
        {%- generation %}{{ '<|im_start|>assistant\n' + message.content + eos_token }}
        {%- endgeneration %}
    {% else %}
<|im_start|>{{ message.role }}
{{ message.content | trim }}{{ {'n': loop.index, 't': '<ü>'} | tojson }}<|im_end|>
    {% endif %}
    {%- if loop.index > 20 %}{% break %}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}
<|im_start|>assistant
{% endif %}"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level BPE whose characters often span tokens, and a template with every trap."""
    path = tmp_path_factory.mktemp("tokenizer")
    fast = FastTokenizer(models.BPE())
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    specials = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=specials,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    fast.train_from_iterator(["plain words and more words " * 5], trainer)
    fast.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", fast.token_to_id("<s>"))]
    )
    fast.save(str(path / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": {"content": "<s>", "__type": "AddedToken"},
        "eos_token": "</s>",
        "chat_template": TEMPLATE,
    }
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    (path / "config.json").write_text(json.dumps({"model_type": "llama", "eos_token_id": 1}))
    return path


CHATS = [
    [ChatMessage("user", "  Hello 🌞 ")],
    [
        ChatMessage("system", "Be brief."),
        ChatMessage("user", "Grüße & <b>more</b>"),
        ChatMessage("assistant", "Ja."),
        ChatMessage("user", "日本語?"),
    ],
]


@pytest.mark.parametrize("chat", CHATS)
def test_a_conversation_is_tokenised_as_transformers_does(folder: Path, chat: list[ChatMessage]) -> None:
    from transformers import AutoTokenizer

    turns = [{"role": turn.role, "content": turn.content} for turn in chat]
    theirs = AutoTokenizer.from_pretrained(folder)
    text = theirs.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
    ids = theirs.apply_chat_template(turns, add_generation_prompt=True, return_dict=False)
    ours = Tokenizer(folder)
    assert ours.render_chat(chat) == text
    assert ours.encode_chat(chat) == ids
    assert ours.encode(TEXT) == theirs.encode(TEXT)


def test_special_tokens_of_a_chat_are_not_added_twice(folder: Path) -> None:
    """The template writes BOS itself; a plain prompt gets it from the tokenizer."""
    tokenizer = Tokenizer(folder)
    assert tokenizer.encode_chat(CHATS[0])[:2].count(0) == 1
    assert tokenizer.encode("words")[0] == 0


def test_incremental_text_is_the_full_text(folder: Path) -> None:
    """Whatever characters the tokens split, the pieces joined are the whole."""
    tokenizer = Tokenizer(folder)
    ids = tokenizer.encode(TEXT)
    decoder = tokenizer.decoder()
    pieces = [decoder.step(token) for token in ids]
    assert "".join(pieces) == tokenizer.decode(ids) == TEXT
    assert not any("\ufffd" in piece for piece in pieces)


def test_incremental_text_after_a_prompt_is_the_rest(folder: Path) -> None:
    tokenizer = Tokenizer(folder)
    ids = tokenizer.encode(TEXT)
    for cut in range(1, len(ids)):
        if tokenizer.decode(ids[:cut]).endswith("\ufffd"):
            continue
        decoder = tokenizer.decoder(ids[:cut])
        rest = "".join(decoder.step(token) for token in ids[cut:])
        assert tokenizer.decode(ids[:cut]) + rest == TEXT


def test_a_character_that_the_prompt_cuts_off_is_told_once(folder: Path) -> None:
    """By the answer, if that completes it; else by nobody: never again what stands before it."""
    tokenizer = Tokenizer(folder)

    def answered(prompt: list[int], answer: list[int]) -> str:
        decoder = tokenizer.decoder(prompt)
        return "".join(decoder.step(token_id) for token_id in answer)

    for words in ("once upon a ", ""):
        before, whole = tokenizer.encode_plain(words), tokenizer.encode_plain("日é😀")
        for cut in range(len(whole) + 1):
            prompt, told = before + whole[:cut], tokenizer.decode(before + whole[:cut]).rstrip("\ufffd")
            rest = (words + "日é😀!").removeprefix(told)
            assert answered(prompt, whole[cut:] + tokenizer.encode_plain("!")) == rest
            assert answered(prompt, tokenizer.encode_plain("dog")) == "dog"


def test_tokens_at_random_lose_nothing_but_broken_characters(folder: Path) -> None:
    """Random bytes, most of them no characters, give the full text too."""
    tokenizer = Tokenizer(folder)
    rng = random.Random(0)
    for _ in range(50):
        ids = [rng.randrange(4, tokenizer.vocab_size) for _ in range(30)]
        decoder = tokenizer.decoder()
        text = "".join(decoder.step(token) for token in ids)
        assert text.replace("\ufffd", "") == tokenizer.decode(ids).replace("\ufffd", "")


def test_bytes_that_are_no_character_do_not_end_an_answer(tmp_path: Path) -> None:
    """As in vLLM: one that changes what has been shown already has no text, and the text goes on after it."""
    names = [f"<0x{byte:02X}>" for byte in range(256)]
    vocabulary = {name: index for index, name in enumerate([*names, "z", "▁and"])}
    fast = FastTokenizer(models.BPE(vocabulary, [], byte_fallback=True))
    fast.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    fast.save(str(tmp_path / "tokenizer.json"))
    decoder = Tokenizer(tmp_path).decoder()
    pieces = [decoder.step(token) for token in (ord("a"), 0xE4, 256, 257, ord("b"), 0xE4, 256)]
    assert "".join(pieces) == "az andbz"


def test_special_tokens_have_no_text(folder: Path) -> None:
    decoder = Tokenizer(folder).decoder()
    assert [decoder.step(token) for token in (0, 2, 3, 1)] == [""] * 4


def test_the_template_may_refuse_and_says_why(folder: Path) -> None:
    with pytest.raises(ChatTemplateError, match="no tools here"):
        Tokenizer(folder).encode_chat([ChatMessage("tool", "x")])


def test_a_template_cannot_reach_python(folder: Path, tmp_path: Path) -> None:
    """Templates come with weights from anywhere: they run in a sandbox."""
    (tmp_path / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    (tmp_path / "chat_template.jinja").write_text("{{ messages.__class__.__mro__ }}")
    with pytest.raises(ChatTemplateError):
        Tokenizer(tmp_path).encode_chat(CHATS[0])


SYSTEM, DEVELOPER = ChatMessage("system", "be kind"), ChatMessage("developer", "be short")


GROW = (
    "{{% set n = namespace(s='a') %}}{{% for i in range(99) %}}{{% set n.s = n.s {} n.s %}}"
    "{{% endfor %}}{{{{ n.s }}}}"
)


@pytest.mark.long(keep=1, reason="more cases of the law whose first `make test` runs", moderate=True)
@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "too long"),
        ("{% macro f(n) %}{{ f(n-1) if n }}{{ f(n-1) if n }}{% endmacro %}{{ f(40) }}", "too long"),
        ("{% for a in t %}{% for b in t %}{% for c in t %}{% endfor %}{% endfor %}{% endfor %}", "too long"),
        ("{{ 'a' * 999999999999 }}", "a text of more than"),
        ("{{ 9 ** 99999999 }}", "a power"),
        ("{% for i in range(1000000000) %}{% endfor %}", "too large for this conversation: Range too big"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "too large for this conversation: maximum rec"),
        ("{{ '%1000000000d' % 1 }}", "a width"),
        ("{{ '%*d' % (1000000000, 1) }}", "a width"),
        ("{{ '{:1000000000d}'.format(1) }}", "a width"),
        ("{{ '%1000000000d'|format(1) }}", "a width"),
        ("{{ 'a'.rjust(1000000000) }}", "fills a text up"),
        ("{{ 'a'|center(1000000000) }}", "fills a text up"),
        ("{{ messages|tojson(indent=1000000000) }}", "fills a text up"),
        ("{{ (t|replace('x', t))|replace('x', t) }}", "a text of more than"),
        ("{{ t.replace('x', t).replace('x', t) }}", "a text of more than"),
        ("{{ range(99999)|join(t) }}", "a text of more than"),
        ("{{ t.join(['x'] * 99999) }}", "a text of more than"),
        (GROW.format("~"), "a text of more than"),
        (GROW.format("+"), "a text of more than"),
        ("{% set s = t * 5000 %}{{ s }}{{ s }}", "a text of more than"),
    ],
)
def test_a_template_that_would_never_end_is_refused_in_time(source: str, words: str) -> None:
    """Loops, calls of itself, loops over what a client sends, texts and numbers without end."""
    template = compiled(source, Path("a model"))
    reading = Reading(template_arguments={"t": "x" * 5_000})
    with pytest.raises(ChatTemplateError, match=words):
        rendered(template, [ChatMessage("user", "hi")], reading, {})


def test_bounds_on_texts_change_nothing_of_what_is_small() -> None:
    """Sums, joins, formats and filters are those of Jinja without bounds."""
    source = (
        "{{ 'a' ~ 1 ~ none ~ missing ~ [2] }} {{ 1 + 2 }} {{ 'a' + 'b' }} {{ [1] + [2] }}"
        " {{ '%5.2f|%s' % (1.5, 'x') }}"
        " {{ '%3d'|format(7) }} {{ '{:>4}{}'.format('a', 2) }} {{ [1, 2]|join(', ') }} {{ 'abc'|join('-') }}"
        " {{ messages|map(attribute='role')|join('+') }} {{ messages|join(', ', attribute='role') }}"
        " {{ 'aXa'|replace('a', 'bb') }} {{ 'aaa'.replace('a', 'b', 2) }} {{ 'x'|center(5) }}|"
        " {{ 'a\nb'|indent(2) }}"
        " {{ [1]|tojson(indent=2) }} {{ 'x'.join(['a', 'b']) }} {{ ''|join }} {{ missing|join(',') }}"
    )
    expected = jinja2.Environment(trim_blocks=True, lstrip_blocks=True).from_string(source)
    messages = [{"role": "user", "content": "hi"}]
    found = rendered(compiled(source, Path("a model")), [ChatMessage("user", "hi")], PLAIN_READING, {})
    assert found == expected.render(messages=messages)


def test_a_loop_in_a_template_knows_its_first_last_and_length() -> None:
    """Its items are counted on the way, and what templates ask of a loop stays true."""
    source = (
        "{% for m in messages %}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.index }} {% endfor %}"
    )
    said = rendered(compiled(source, Path("a model")), [ChatMessage("user", "hi")] * 2, PLAIN_READING, {})
    assert said == "TrueFalse21 FalseTrue22 "


LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""The expression by which Llama 3 cuts text into words."""


@pytest.mark.long(reason="computes many steps of a model", moderate=True)
def test_a_prompt_at_which_the_library_panics_is_an_ordinary_error(tmp_path: Path) -> None:
    """11 million spaces reach a limit of the library's, which panics: no Exception, but here it is one."""
    shutil.copytree(EMBEDDED_MODEL, tmp_path / "model")
    file = tmp_path / "model" / "tokenizer.json"
    config = json.loads(file.read_text())
    split = {"type": "Split", "pattern": {"Regex": LLAMA_3}, "behavior": "Isolated", "invert": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    config["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split, byte_level]}
    file.write_text(json.dumps(config))
    tokenizer = Tokenizer(tmp_path / "model")
    with pytest.raises(ForeignFailure, match="retry-limit"):
        tokenizer.encode(" " * 11_000_000)
    assert tokenizer.encode("hi")


def test_a_developer_speaks_as_the_system_where_the_template_knows_none(folder: Path) -> None:
    """First and once, where templates expect it, wherever it was said; users' turns keep their order."""
    tokenizer = Tokenizer(folder)
    hello = ChatMessage("user", "hello")
    merged = tokenizer.render_chat([ChatMessage("system", "be kind\n\nbe short"), hello])
    assert "developer" not in merged
    assert tokenizer.render_chat([SYSTEM, DEVELOPER, hello]) == merged
    assert tokenizer.render_chat([SYSTEM, hello, DEVELOPER]) == merged
    apart = tokenizer.render_chat([SYSTEM, hello, SYSTEM])
    assert apart.count("be kind") == 2 and "be kind\n\nbe kind" not in apart


def test_a_template_that_knows_developers_is_shown_them(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    template = (
        "{% for m in messages %}{{ 'D' if m.role == 'developer' else m.role }}:{{ m.content }};{% endfor %}"
    )
    (tmp_path / "chat_template.jinja").write_text(template)
    assert Tokenizer(tmp_path).render_chat([SYSTEM, DEVELOPER]) == "system:be kind;D:be short;"


def test_a_model_without_a_template_refuses_chats(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    tokenizer = Tokenizer(tmp_path)
    with pytest.raises(ChatTemplateError, match="no chat template"):
        tokenizer.encode_chat(CHATS[0])


def test_end_tokens_come_from_the_generation_configuration_first(folder: Path, tmp_path: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    assert Tokenizer(tmp_path).eos_token_ids == (1,)
    (tmp_path / "config.json").write_text('{"eos_token_id": 2}')
    assert Tokenizer(tmp_path).eos_token_ids == (2,)
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [3, 1]}')
    assert Tokenizer(tmp_path).eos_token_ids == (3, 1)


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"no tokenizer: tokenizer\.json is missing"):
        Tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(LoadError, match=r"cannot read .*tokenizer\.json"):
        Tokenizer(tmp_path)


def test_tokenising_needs_no_torch() -> None:
    """The simulated server tokenises too, and starts without torch."""
    code = "import sundog.runtime.text.tokenizer, sys; print({'torch', 'transformers'} & set(sys.modules))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "set()"
