#!/usr/bin/env bash
# Compiles the Kotlin classes of examples/android, except for what needs Android or newer coroutines,
# and runs them on a Java VM with the built library.
#     tools/kotlin.sh
set -euo pipefail

# shellcheck source=tools/setup.sh
. "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
cd "$ROOT"

have kotlinc && have javac || fail "tools/setup.sh installs kotlin and default-jdk-headless"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Where cargo puts the library that the tests are built with.
library=$(target_folder)/release/deps
gguf=$(echo "$MODEL_DIR"/*.gguf)
java=$(dirname "$(dirname "$(readlink -f "$(command -v javac)")")")
sources=examples/android/app/src/main
cc -std=c11 -Wall -Wextra -Werror -fPIC -shared -I include -I "$java/include" -I "$java/include/linux" \
    "$sources/cpp/tlite_jni.c" -o "$work/libtlite_jni.so" -L "$library" -ltlite_c "-Wl,-rpath,$library"
# Debian's compiler is that of Kotlin 1.3; its JVM prints a warning about an option.
kotlinc "$sources"/kotlin/org/transformerlite/{Native,Runner,Tlite}.kt examples/android/test/Test.kt \
    -include-runtime -d "$work/test.jar" 2>"$work/log" || { cat "$work/log" >&2; fail "the classes do not compile"; }
java -Djava.library.path="$work" -Xcheck:jni -cp "$work/test.jar" org.transformerlite.TestKt \
    "$CACHE/mobilenetv2/model.onnx" "$MODEL_DIR/e0m4" "$gguf" "$work"
