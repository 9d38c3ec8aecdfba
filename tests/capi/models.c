/* Real models through the C interface: models MOBILENET CHAT BACKEND. Says what differs and ends with 1. */
#include "answers.h"

#include <math.h>

enum { SIZE = 3 * 224 * 224 };

/* MobileNetV2 of a picture of numbers. The expected logits are those of ONNX Runtime 1.32. */
static void picture(const char *path, const tlite_load_options *options) {
    static float pixels[SIZE], logits[1000];
    const size_t shape[4] = {1, 3, 224, 224};
    const int classes[3] = {556, 539, 753};
    const float expected[3] = {10.002625f, 8.709406f, 8.371298f};
    tlite_tensor input = {"data", pixels, sizeof pixels, shape, 4, TLITE_TYPE_F32};
    tlite_tensor_info info;
    tlite_runner *runner = tlite_runner_load(path, options);
    int i, best = 0;
    CHECK(runner != NULL);
    for (i = 0; i < SIZE; i++) {
        pixels[i] = (float)((int64_t)i * 7919 % 256) / 255;
    }
    /* The weights are optional inputs; inputs that a run needs come first. */
    CHECK(tlite_runner_input_count(runner) > 1 && tlite_runner_input(runner, 1, &info) == 0 && info.optional);
    CHECK(tlite_runner_input(runner, 0, &info) == 0 && !info.optional);
    CHECK(strcmp(info.name, "data") == 0 && info.element_type == TLITE_TYPE_F32 && info.rank == 4);
    CHECK(info.shape[1] == 3 && strcmp(info.axes[3], "224") == 0);
    CHECK(tlite_runner_run(runner, &input, 1) == 0);
    CHECK(tlite_runner_output_count(runner) == 1 && tlite_runner_output(runner, 0, &info) == 0);
    CHECK(info.rank == 2 && info.shape[0] == 1 && info.shape[1] == 1000);
    CHECK(tlite_runner_read(runner, info.name, TLITE_TYPE_F32, logits, sizeof logits - 1) == -1);
    CHECK(says("4000") && says("3999") && tlite_last_error_code() == TLITE_ERROR_SHAPE_MISMATCH);
    CHECK(tlite_runner_read(runner, info.name, TLITE_TYPE_I32, logits, sizeof logits) == -1 && says("i32"));
    CHECK(tlite_runner_read(runner, info.name, TLITE_TYPE_F32, NULL, sizeof logits) == -1 && names_option("data"));
    CHECK(tlite_runner_read(runner, info.name, TLITE_TYPE_F32, logits, sizeof logits) == 0);
    for (i = 0; i < 1000; i++) {
        if (logits[i] > logits[best]) best = i;
    }
    CHECK(best == classes[0]);
    for (i = 0; i < 3; i++) {
        CHECK(fabsf(logits[classes[i]] - expected[i]) < 0.01f);
    }
    /* A cancelled run, and one after it. */
    tlite_runner_cancel(runner);
    CHECK(tlite_runner_run(runner, &input, 1) == -1 && tlite_last_error_code() == TLITE_ERROR_INTERRUPTED);
    CHECK(tlite_runner_run(runner, &input, 1) == 0);
    tlite_runner_free(runner);
}

/* A fact as JSON of a schema, from a session and from a batch. */
static void fact(const char *folder, const tlite_load_options *options) {
    tlite_message message = {"user", "What is the capital of France? Answer in JSON.", NULL};
    tlite_generate_options asked = defaults();
    tlite_model *model = tlite_model_load(folder, options);
    tlite_session *session = model == NULL ? NULL : tlite_session_new(model);
    tlite_batcher *batcher;
    tlite_request *request;
    answer a = {0}, b = {0};
    asked.max_tokens = 64;
    asked.json_schema = "{\"type\": \"object\", \"properties\": {\"capital\": {\"enum\": [\"London\", \"Paris\", \"Rome\"]}},"
                        " \"required\": [\"capital\"], \"additionalProperties\": false}";
    CHECK(session != NULL);
    CHECK(tlite_chat(session, &message, 1, &asked, collect, &a) == TLITE_FINISH_END_OF_TEXT);
    CHECK(a.text[0] == '{' && strstr(a.text, "\"capital\"") != NULL && strstr(a.text, "\"Paris\"") != NULL);
    CHECK(a.text[a.length - 1] == '}');
    tlite_session_free(session);
    tlite_model_free(model);
    batcher = tlite_batcher_load(folder, options, 2);
    CHECK(batcher != NULL);
    request = tlite_batcher_chat(batcher, &message, 1, &asked, collect, &b);
    CHECK(request != NULL && tlite_request_wait(request) == TLITE_FINISH_END_OF_TEXT);
    CHECK(strstr(b.text, "\"Paris\"") != NULL);
    tlite_request_free(request);
    tlite_batcher_free(batcher);
}

int main(int argc, char **argv) {
    tlite_load_options options;
    if (argc != 4) {
        fprintf(stderr, "usage: models MOBILENET CHAT BACKEND\n");
        return 2;
    }
    CHECK(tlite_load_defaults(&options, sizeof options) == 0);
    options.backend = argv[3];
    picture(argv[1], &options);
    options.context = 512;
    fact(argv[2], &options);
    printf("%s\n", tlite_version());
    return 0;
}
