"""Shared by comparisons with llama.cpp: runs `tlite`, and llama.cpp's library through ctypes.

DIR of --llama-cpp holds llama.cpp's libraries (libllama, libggml): the folder `bin` of your own
build, or the folder bins/linux-x64 of the npm package @node-llama-cpp/linux-x64 3.22.1.
"""

import ctypes
import glob
import json
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
COMMAND = os.environ.get("TLITE") or os.path.join(ROOT, "target/release/tlite")
# llama.cpp's numbers for file types.
F32, F16, Q4_0, Q4_K_M = 0, 1, 2, 15


class Failure(Exception):
    """An error to report to the user."""


def folder_for(gguf, work):
    """The folder in `work` for files derived from `gguf`, identified by its name and size."""
    stem = os.path.splitext(os.path.basename(gguf))[0]
    folder = os.path.join(os.path.abspath(work), f"{stem}-{os.path.getsize(gguf)}")
    os.makedirs(folder, exist_ok=True)
    return folder


def tlite(*arguments):
    """Runs tlite and returns its output, parsed if it is a JSON object."""
    command = [COMMAND, *map(str, arguments)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise Failure(f"{' '.join(command)}: {done.stderr.strip()}")
    return json.loads(done.stdout) if done.stdout.startswith("{") else done.stdout


def libraries(folder):
    """Loads llama.cpp's library and the libraries that it depends on."""
    for pattern in ("libggml-base*.so*", "libggml.*so*", "libllama.*so*"):
        found = sorted(glob.glob(os.path.join(folder, pattern)))
        if not found:
            raise Failure(f"--llama-cpp: {folder} has no {pattern}")
        library = ctypes.CDLL(found[0], mode=ctypes.RTLD_GLOBAL)
        if pattern.startswith("libggml."):
            # Selects the library for this CPU.
            library.ggml_backend_load_all_from_path.argtypes = [ctypes.c_char_p]
            with silence():
                library.ggml_backend_load_all_from_path(folder.encode())
    return library


class QuantizeParams(ctypes.Structure):
    """The first fields of llama_model_quantize_params; the rest keeps its defaults."""

    _fields_ = [
        ("threads", ctypes.c_int32),
        ("format", ctypes.c_int),
        ("output_type", ctypes.c_int),
        ("embedding_type", ctypes.c_int),
        ("allow_requantize", ctypes.c_bool),
        ("rest", ctypes.c_uint8 * 255),
    ]


def quantize_gguf(library, source, target, number):
    """Quantizes a GGUF file with llama.cpp to file type `number`."""
    library.llama_model_quantize_default_params.restype = QuantizeParams
    library.llama_model_quantize.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.POINTER(QuantizeParams)]
    library.llama_model_quantize.restype = ctypes.c_uint32
    params = library.llama_model_quantize_default_params()
    params.format, params.allow_requantize = number, True
    part = target + ".part"
    # It reports every tensor.
    with silence():
        code = library.llama_model_quantize(source.encode(), part.encode(), ctypes.byref(params))
    if code != 0:
        raise Failure(f"llama.cpp could not quantize {source} (code {code})")
    os.replace(part, target)


def same_weights(library, gguf, work, name, number, folder, *options):
    """Two forms of a model, made on first use: GGUF in llama.cpp's file type `number`, and the
    folder that tlite converts it to."""
    file, folder = os.path.join(work, f"{name}.gguf"), os.path.join(work, folder)
    if not os.path.isfile(file):
        quantize_gguf(library, gguf, file, number)
    if not os.path.isdir(folder):
        tlite("convert", gguf, *options, "-o", folder)
    return file, folder


class silence:
    """Discards what libraries write to standard output and standard error."""

    def __enter__(self):
        sys.stdout.flush()
        self.saved = [os.dup(1), os.dup(2)]
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 1)
            os.dup2(nowhere.fileno(), 2)

    def __exit__(self, *_):
        for stream, saved in zip((1, 2), self.saved):
            os.dup2(saved, stream)
            os.close(saved)


class Params(ctypes.Structure):
    """The first fields of llama.cpp's model and context parameters; the rest keeps its defaults."""

    _fields_ = [*[(name, ctypes.c_uint32) for name in ("context", "batch", "micro_batch", "sequences")], ("rest", ctypes.c_uint8 * 496)]


class Batch(ctypes.Structure):
    """llama_batch."""

    _fields_ = [("count", ctypes.c_int32), *[(name, ctypes.c_void_p) for name in ("token", "embd", "pos", "n_seq_id", "seq_id", "logits")]]


class LlamaCpp:
    """A model in llama.cpp, on the devices that it chooses; `sequences` share `context` tokens."""

    def __init__(self, library, path, context, threads, sequences=1):
        self.lib = library
        pointer, text, integer = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int32
        tokens = ctypes.POINTER(ctypes.c_int32)
        for name, result, arguments in [
            ("llama_model_default_params", Params, []),
            ("llama_context_default_params", Params, []),
            ("llama_model_load_from_file", pointer, [text, Params]),
            ("llama_init_from_model", pointer, [pointer, Params]),
            ("llama_set_n_threads", None, [pointer, integer, integer]),
            ("llama_model_get_vocab", pointer, [pointer]),
            ("llama_vocab_n_tokens", integer, [pointer]),
            ("llama_vocab_is_eog", ctypes.c_bool, [pointer, integer]),
            ("llama_tokenize", integer, [pointer, text, integer, tokens, integer, ctypes.c_bool, ctypes.c_bool]),
            ("llama_batch_get_one", Batch, [tokens, integer]),
            ("llama_decode", integer, [pointer, Batch]),
            ("llama_get_logits_ith", ctypes.POINTER(ctypes.c_float), [pointer, integer]),
            ("llama_get_memory", pointer, [pointer]),
            ("llama_memory_clear", None, [pointer, ctypes.c_bool]),
            ("llama_synchronize", None, [pointer]),
        ]:
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
        with silence():
            self.model = library.llama_model_load_from_file(path.encode(), library.llama_model_default_params())
            params = library.llama_context_default_params()
            params.context = params.batch = context
            params.sequences = sequences
            self.context = self.model and library.llama_init_from_model(self.model, params)
        if not self.context:
            raise Failure(f"llama.cpp could not load {path}")
        with silence():
            library.llama_set_n_threads(self.context, threads, threads)
        self.vocab = library.llama_model_get_vocab(self.model)
        self.size = library.llama_vocab_n_tokens(self.vocab)

    def encode(self, text):
        data, room = text.encode(), len(text.encode()) + 8
        ids = (ctypes.c_int32 * room)()
        count = self.lib.llama_tokenize(self.vocab, data, len(data), ids, room, True, True)
        if count < 0:
            raise Failure(f"llama.cpp could not encode {text!r}")
        return list(ids[:count])

    def clear(self):
        """Empties the cache."""
        self.lib.llama_memory_clear(self.lib.llama_get_memory(self.context), True)

    def feed(self, part):
        """Feeds these tokens and waits until they are processed."""
        ids = (ctypes.c_int32 * len(part))(*part)
        code = self.lib.llama_decode(self.context, self.lib.llama_batch_get_one(ids, len(part)))
        if code != 0:
            raise Failure(f"llama_decode failed (code {code})")
        self.lib.llama_synchronize(self.context)

    def feed_rows(self, rows):
        """Feeds rows of (token, position, sequence, whether its logits are needed) at once."""
        tokens, positions, sequences, needed = zip(*rows)
        n = len(rows)
        integers = ctypes.c_int32 * n
        ids, places, ones, which = integers(*tokens), integers(*positions), integers(*[1] * n), integers(*sequences)
        pointers = (ctypes.c_void_p * n)(*[ctypes.addressof(which) + 4 * i for i in range(n)])
        arrays = (ids, None, places, ones, pointers, (ctypes.c_int8 * n)(*needed))
        code = self.lib.llama_decode(self.context, Batch(n, *[a and ctypes.addressof(a) for a in arrays]))
        if code != 0:
            raise Failure(f"llama_decode failed (code {code})")
        self.lib.llama_synchronize(self.context)

    def generate(self, prompt, count):
        """Greedy tokens, and the logits from which each was chosen."""
        self.clear()
        tokens, rows, part = [], [], prompt
        while len(tokens) < count:
            self.feed(part)
            row = self.lib.llama_get_logits_ith(self.context, -1)[: self.size]
            best = max(range(self.size), key=row.__getitem__)
            rows.append(row)
            if self.lib.llama_vocab_is_eog(self.vocab, best):
                break
            tokens.append(best)
            part = [best]
        return tokens, rows
