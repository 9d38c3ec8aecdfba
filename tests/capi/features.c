/* The C interface beyond plain answers: features FOLDER BACKEND [GGUF OUTPUT]. Says what differs and ends with 1. */
#include "answers.h"

/* Tokens with log-probabilities. */
typedef struct {
    int tokens, stop_after;
    float least;
    char text[256];
} listed;

static int list(const tlite_log_prob *chosen, const tlite_log_prob *top, size_t count, void *user) {
    listed *l = user;
    size_t i;
    CHECK(count == 2 && chosen->log_prob <= top[0].log_prob && top[1].log_prob <= top[0].log_prob);
    CHECK(chosen->text[chosen->length] == 0 && strlen(l->text) + chosen->length < sizeof l->text);
    strcat(l->text, chosen->text);
    for (i = 0; i < count; i++) {
        CHECK(top[i].log_prob <= 0 && top[i].log_prob > -30);
    }
    l->tokens++;
    return l->stop_after == l->tokens ? 5 : 0;
}

/* Takes the text of an answer whose tokens are listed. */
static int append(const char *text, size_t length, void *user) {
    (void)text;
    (void)length;
    (void)user;
    return 0;
}

static int fail(const char *text, size_t length, void *user) {
    (void)text;
    (void)length;
    (void)user;
    return 9;
}

/* Grammars, schemas, sampling, log-probabilities and metrics. */
static void constrained(const tlite_model *model) {
    tlite_generate_options options = defaults();
    tlite_session *session = tlite_session_new(model);
    tlite_metrics metrics;
    tlite_logit_bias bias = {0, 0};
    listed l = {0};
    answer a = {0};
    int i;
    CHECK(session != NULL);
    CHECK(tlite_session_metrics(session, &metrics, sizeof metrics) == 0);
    CHECK(metrics.tokens == 0 && metrics.size == sizeof metrics);
    CHECK(tlite_session_metrics(session, &metrics, 8) == -1 && names_option("size"));
    CHECK(tlite_session_metrics(session, NULL, sizeof metrics) == -1 && names_option("metrics"));
    CHECK(tlite_session_metrics(NULL, &metrics, sizeof metrics) == -1 && names_option("session"));
    options.grammar = "start: \"abc\" | \"xyz\"";
    CHECK(tlite_generate(session, "hi", &options, collect, &a) == TLITE_FINISH_END_OF_TEXT);
    CHECK(a.length == 3 && (memcmp(a.text, "abc", 3) == 0 || memcmp(a.text, "xyz", 3) == 0));
    CHECK(tlite_session_metrics(session, &metrics, sizeof metrics) == 0);
    CHECK(metrics.tokens == 3 && metrics.prompt_tokens > 0 && metrics.decode_s > 0);
    options.json_schema = "{\"const\": 17}";
    CHECK(tlite_generate(session, "hi", &options, collect, &a) == TLITE_FINISH_ERROR);
    CHECK(names_option("json_schema") && says("grammar"));
    options.grammar = NULL;
    memset(&a, 0, sizeof a);
    CHECK(tlite_generate(session, "hi", &options, collect, &a) == TLITE_FINISH_END_OF_TEXT);
    CHECK(strcmp(a.text, "17") == 0);
    options.json_schema = "{\"type\": \"strnig\"}";
    CHECK(tlite_generate(session, "hi", &options, collect, &a) == TLITE_FINISH_ERROR);
    CHECK(names_option("json_schema") && says("strnig") && tlite_last_error_code() == TLITE_ERROR_USAGE);
    options = defaults();
    options.grammar = "root ::= \"ab\" [0-9]";
    memset(&a, 0, sizeof a);
    CHECK(tlite_generate(session, "hi", &options, collect, &a) == TLITE_FINISH_END_OF_TEXT);
    CHECK(a.length == 3 && memcmp(a.text, "ab", 2) == 0 && a.text[2] >= '0' && a.text[2] <= '9');
    options.grammar = "start: \xff";
    CHECK(tlite_generate(session, "hi", &options, collect, &a) == TLITE_FINISH_ERROR);
    CHECK(names_option("grammar") && says("UTF-8"));
    options.grammar = "start: nothing";
    CHECK(tlite_generate(session, "hi", &options, collect, &a) == TLITE_FINISH_ERROR);
    CHECK(names_option("grammar") && says("nothing"));

    options = defaults();
    options.max_tokens = 6;
    options.log_probs = 2;
    CHECK(tlite_generate(session, "hello", &options, append, &l) == TLITE_FINISH_ERROR);
    CHECK(names_option("log_probs") && says("on_token"));
    options.on_token = list;
    CHECK(tlite_generate(session, "hello", &options, append, &l) == TLITE_FINISH_MAX_TOKENS);
    a = generate(session, 6, 0, TLITE_FINISH_MAX_TOKENS);
    CHECK(l.tokens == 6 && strcmp(l.text, a.text) == 0);
    /* A special token has a name. */
    memset(&l, 0, sizeof l);
    options.max_tokens = 1;
    options.logit_bias = &bias;
    options.logit_bias_count = 1;
    bias.token = 1;
    bias.bias = 1000;
    CHECK(tlite_generate(session, "hello", &options, append, &l) == TLITE_FINISH_MAX_TOKENS);
    CHECK(l.tokens == 1 && strcmp(l.text, "<|im_start|>") == 0);
    options.logit_bias = NULL;
    options.logit_bias_count = 0;
    options.max_tokens = 6;
    /* What a callback returns is named. */
    memset(&l, 0, sizeof l);
    l.stop_after = 2;
    CHECK(tlite_generate(session, "hello", &options, append, &l) == TLITE_FINISH_CALLBACK);
    CHECK(l.tokens == 2 && names_option("on_token") && says("5"));
    options = defaults();
    CHECK(tlite_generate(session, "hello", &options, fail, NULL) == TLITE_FINISH_CALLBACK);
    CHECK(names_option("callback") && says("9") && tlite_last_error_code() == TLITE_ERROR_INTERRUPTED);
    options.log_probs = -2;
    CHECK(tlite_generate(session, "hello", &options, append, &l) == TLITE_FINISH_ERROR);
    CHECK(names_option("log_probs") && says("-2"));

    /* A token that is forbidden does not come; the first of the alphabet's tokens has ID 100. */
    options = defaults();
    options.max_tokens = 1;
    options.logit_bias = &bias;
    options.logit_bias_count = 1;
    for (i = 0; i < 26; i++) {
        bias.token = 100 + (uint32_t)i;
        bias.bias = 1000;
        memset(&a, 0, sizeof a);
        CHECK(tlite_generate(session, "hello", &options, collect, &a) == TLITE_FINISH_MAX_TOKENS);
        CHECK(a.length == 1 && a.text[0] == 'a' + i);
    }
    options.logit_bias = NULL;
    CHECK(tlite_generate(session, "hello", &options, collect, &a) == TLITE_FINISH_ERROR);
    CHECK(names_option("logit_bias"));
    options = defaults();
    options.typical_p = 2;
    CHECK(tlite_generate(session, "hello", &options, collect, &a) == TLITE_FINISH_ERROR);
    CHECK(names_option("typical_p"));
    tlite_session_free(session);
}

/* Counts warnings about a bound. */
static void count_bounds(tlite_log_level level, const char *text, void *user) {
    if (level == TLITE_LOG_LEVEL_WARNING && strstr(text, "40 digits") != NULL) ++*(int *)user;
}

/* A model that always wants the digit 9 ends at the default bound of 40 digits, or never. */
static void unbounded(const char *folder, tlite_load_options load) {
    tlite_generate_options options = defaults();
    tlite_model *model;
    tlite_batcher *batcher;
    tlite_session *session;
    tlite_request *request;
    answer a;
    static int bounds;
    /* Behind three control tokens, there is one for each byte. */
    tlite_logit_bias bias = {3 + '9', 1000};
    load.context = 64;
    model = tlite_model_load(folder, &load);
    session = tlite_session_new(model);
    CHECK(session != NULL);
    options.json_schema = "{\"type\": \"integer\"}";
    options.logit_bias = &bias;
    options.logit_bias_count = 1;
    options.max_tokens = 50;
    CHECK(tlite_set_log(count_bounds, &bounds) == 0);
    memset(&a, 0, sizeof a);
    CHECK(tlite_generate(session, "hi", &options, collect, &a) == TLITE_FINISH_END_OF_TEXT);
    CHECK(a.length == 40 && strspn(a.text, "9") == 40 && bounds == 1);
    batcher = tlite_batcher_load(folder, &load, 1);
    request = tlite_batcher_generate(batcher, "hi", &options, collect, &a);
    CHECK(request != NULL && tlite_request_wait(request) == TLITE_FINISH_END_OF_TEXT && bounds == 2);
    tlite_request_free(request);
    tlite_batcher_free(batcher);
    options.json_unbounded = 1;
    memset(&a, 0, sizeof a);
    CHECK(tlite_generate(session, "hi", &options, collect, &a) == TLITE_FINISH_MAX_TOKENS);
    CHECK(a.length == 50 && strspn(a.text, "9") == 50 && bounds == 2);
    CHECK(tlite_set_log(NULL, NULL) == 0);
    tlite_session_free(session);
    tlite_model_free(model);
}

/* A callback of a request tries what only others may do. */
typedef struct {
    answer answer;
    tlite_request *request;
} own;

static int wait_inside(const char *text, size_t length, void *user) {
    own *o = user;
    if (o->request != NULL) {
        CHECK(tlite_request_wait(o->request) == TLITE_FINISH_ERROR);
        CHECK(tlite_last_error_code() == TLITE_ERROR_BUSY);
    }
    return collect(text, length, &o->answer);
}

/* Many requests at the same time. */
static void batched(const char *folder, const tlite_load_options *load, const tlite_model *model) {
    tlite_generate_options options = defaults();
    tlite_message message = {"user", "hello", NULL};
    tlite_batcher *batcher = tlite_batcher_load(folder, load, 3);
    tlite_session *session = tlite_session_new(model);
    tlite_request *requests[6], *failing, *long_one;
    tlite_metrics metrics;
    answer answers[6], whole, a = {0};
    own o;
    int i;
    CHECK(batcher != NULL && session != NULL);
    whole = generate(session, 8, 0, TLITE_FINISH_MAX_TOKENS);
    memset(answers, 0, sizeof answers);
    options.max_tokens = 8;
    for (i = 0; i < 6; i++) {
        requests[i] = i % 2 == 0 ? tlite_batcher_generate(batcher, "hello", &options, collect, &answers[i])
                                 : tlite_batcher_chat(batcher, &message, 1, &options, collect, &answers[i]);
        CHECK(requests[i] != NULL);
    }
    failing = tlite_batcher_generate(batcher, "hello", &options, fail, NULL);
    CHECK(failing != NULL);
    for (i = 0; i < 6; i++) {
        CHECK(tlite_request_wait(requests[i]) == TLITE_FINISH_MAX_TOKENS);
        CHECK(same(&answers[i], i % 2 == 0 ? &whole : &answers[1]));
        CHECK(tlite_request_metrics(requests[i], &metrics, sizeof metrics) == 0 && metrics.tokens == 8);
        CHECK(tlite_request_wait(requests[i]) == TLITE_FINISH_MAX_TOKENS);
        tlite_request_free(requests[i]);
    }
    CHECK(tlite_request_wait(failing) == TLITE_FINISH_CALLBACK);
    CHECK(names_option("callback") && says("9") && tlite_last_error_code() == TLITE_ERROR_INTERRUPTED);
    tlite_request_free(failing);
    memset(&o, 0, sizeof o);
    o.request = tlite_batcher_generate(batcher, "hello", &options, wait_inside, &o);
    CHECK(o.request != NULL && tlite_request_wait(o.request) == TLITE_FINISH_MAX_TOKENS);
    CHECK(same(&o.answer, &whole));
    tlite_request_free(o.request);

    CHECK(tlite_batcher_generate(NULL, "x", NULL, collect, &a) == NULL && names_option("batcher"));
    CHECK(tlite_batcher_generate(batcher, NULL, NULL, collect, &a) == NULL && names_option("prompt"));
    CHECK(tlite_batcher_generate(batcher, "x", NULL, NULL, &a) == NULL && names_option("callback"));
    CHECK(tlite_batcher_chat(batcher, NULL, 1, NULL, collect, &a) == NULL && names_option("messages"));
    options.context_shift = 1;
    CHECK(tlite_batcher_chat(batcher, &message, 1, &options, collect, &a) == NULL);
    CHECK(names_option("context_shift"));
    CHECK(tlite_request_wait(NULL) == TLITE_FINISH_ERROR && names_option("request"));
    CHECK(tlite_batcher_load("no such folder", load, 0) == NULL && says("no such folder"));
    tlite_request_cancel(NULL);
    tlite_request_free(NULL);
    tlite_batcher_free(NULL);
    /* A batcher that goes ends its requests; they may be freed later. */
    long_one = tlite_batcher_generate(batcher, "hello", NULL, append, NULL);
    CHECK(long_one != NULL);
    tlite_request_cancel(long_one);
    tlite_batcher_free(batcher);
    i = tlite_request_wait(long_one);
    CHECK(i == TLITE_FINISH_CANCELLED || i == TLITE_FINISH_CONTEXT_FULL);
    tlite_request_free(long_one);
    tlite_session_free(session);
}

/* Progress that ends the work after so many calls; 0 never. */
typedef struct {
    int calls, stop_after;
    uint64_t last, total;
    char what[16];
} progressing;

static int progressed(const char *what, uint64_t done, uint64_t total, void *user) {
    progressing *p = user;
    CHECK(strlen(what) < sizeof p->what && done <= total && (p->calls == 0 || total == p->total));
    strcpy(p->what, what);
    p->last = done;
    p->total = total;
    p->calls++;
    return p->calls == p->stop_after ? 3 : 0;
}

/* Loading with progress; on devices there are kernels. */
static void loading(const char *folder, tlite_load_options options) {
    progressing p = {0};
    tlite_model *model;
    int all;
    options.on_progress = progressed;
    options.progress_user = &p;
    model = tlite_model_load(folder, &options);
    CHECK(model != NULL);
    tlite_model_free(model);
    all = p.calls;
    if (all == 0) return;
    CHECK(strcmp(p.what, "kernels") == 0 && p.last == p.total);
    memset(&p, 0, sizeof p);
    p.stop_after = 1;
    CHECK(tlite_model_load(folder, &options) == NULL);
    CHECK(p.calls == 1 && names_option("on_progress") && says("3"));
    CHECK(tlite_last_error_code() == TLITE_ERROR_INTERRUPTED);
    CHECK(tlite_batcher_load(folder, &options, 1) == NULL && names_option("on_progress"));
}

/* Conversion to the new folder OUTPUT. */
static void converts(const char *gguf, const char *output) {
    progressing p = {0};
    tlite_model *model;
    tlite_load_options options;
    CHECK(tlite_convert(NULL, output, NULL, NULL) == -1 && names_option("source"));
    CHECK(tlite_convert(gguf, NULL, NULL, NULL) == -1 && names_option("output"));
    CHECK(tlite_convert("no such file", output, NULL, NULL) == -1);
    CHECK(names_option("source") && says("no such file"));
    p.stop_after = 1;
    CHECK(tlite_convert(gguf, output, progressed, &p) == -1);
    CHECK(p.calls == 1 && names_option("on_progress") && says("3"));
    CHECK(tlite_last_error_code() == TLITE_ERROR_INTERRUPTED);
    p.calls = p.stop_after = 0;
    CHECK(tlite_convert(gguf, output, progressed, &p) == 0);
    CHECK(strcmp(p.what, "bytes") == 0 && p.last == p.total && p.calls > 1);
    CHECK(tlite_convert(gguf, output, NULL, NULL) == -1 && says("output"));
    CHECK(tlite_load_defaults(&options, sizeof options) == 0);
    options.backend = "reference";
    model = tlite_model_load(output, &options);
    CHECK(model != NULL);
    tlite_model_free(model);
}

/* A language model as one of any kind: what is said of its tensors, and what is refused. */
static void described(const char *folder, tlite_load_options options) {
    tlite_runner *runner;
    tlite_tensor_info info, logits;
    int64_t ids[2] = {1, 2};
    size_t shape[2] = {1, 2}, i, count;
    tlite_tensor input = {"input_ids", ids, sizeof ids, shape, 2, TLITE_TYPE_I64};
    int found = 0;
    CHECK(tlite_runner_load(folder, &options) == NULL && names_option("context"));
    options.context = 0;
    CHECK(tlite_runner_load("no such folder", &options) == NULL && says("no such folder"));
    CHECK(tlite_runner_load(NULL, &options) == NULL && names_option("path"));
    runner = tlite_runner_load(folder, &options);
    CHECK(runner != NULL);
    count = tlite_runner_input_count(runner);
    CHECK(count > 2 && tlite_runner_output_count(runner) > 1);
    for (i = 0; i < count; i++) {
        CHECK(tlite_runner_input(runner, i, &info) == 0);
        if (strcmp(info.name, "input_ids") != 0) continue;
        CHECK(info.element_type == TLITE_TYPE_I64 && info.rank == 2 && !info.optional);
        CHECK(info.shape[0] == -1 && info.shape[1] == -1 && strlen(info.axes[1]) > 0);
        found = 1;
    }
    CHECK(found);
    CHECK(tlite_runner_input(runner, count, &info) == -1 && names_option("index"));
    CHECK(tlite_runner_input(runner, 0, NULL) == -1 && names_option("info"));
    CHECK(tlite_runner_output(runner, 0, &logits) == 0 && logits.rank == 3);
    CHECK(tlite_runner_read(runner, logits.name, TLITE_TYPE_F32, ids, sizeof ids) == -1);
    CHECK(names_option("name") && says(logits.name));
    /* Others are missing, and the error names them. */
    CHECK(tlite_runner_run(runner, &input, 1) == -1 && tlite_last_error_code() == TLITE_ERROR_MISSING_INPUT);
    CHECK(tlite_runner_output_count(runner) == 0);
    CHECK(tlite_runner_run(runner, NULL, 1) == -1 && names_option("inputs"));
    input.bytes = 15;
    CHECK(tlite_runner_run(runner, &input, 1) == -1 && names_option("input_ids"));
    CHECK(says("16") && says("15") && tlite_last_error_code() == TLITE_ERROR_SHAPE_MISMATCH);
    input.bytes = sizeof ids;
    input.element_type = 23;
    CHECK(tlite_runner_run(runner, &input, 1) == -1 && names_option("input_ids") && says("23"));
    input.element_type = TLITE_TYPE_BOOL;
    shape[1] = 16;
    CHECK(tlite_runner_run(runner, &input, 1) == -1 && names_option("input_ids") && says("2"));
    input.name = "tokens";
    input.element_type = TLITE_TYPE_I64;
    shape[1] = 2;
    CHECK(tlite_runner_run(runner, &input, 1) == -1 && says("tokens"));
    input.name = NULL;
    CHECK(tlite_runner_run(runner, &input, 1) == -1 && names_option("name"));
    CHECK(tlite_runner_input_count(NULL) == 0 && tlite_runner_run(NULL, NULL, 0) == -1);
    tlite_runner_cancel(NULL);
    tlite_runner_free(NULL);
    tlite_runner_free(runner);
}

int main(int argc, char **argv) {
    tlite_load_options options;
    tlite_model *model;
    if (argc != 3 && argc != 5) {
        fprintf(stderr, "usage: features FOLDER BACKEND [GGUF OUTPUT]\n");
        return 2;
    }
    CHECK(tlite_load_defaults(&options, sizeof options) == 0);
    options.backend = argv[2];
    options.context = 40;
    model = tlite_model_load(argv[1], &options);
    CHECK(model != NULL);
    constrained(model);
    batched(argv[1], &options, model);
    unbounded(argv[1], options);
    tlite_model_free(model);
    loading(argv[1], options);
    described(argv[1], options);
    if (argc == 5) converts(argv[3], argv[4]);
    printf("%s\n", tlite_version());
    return 0;
}
