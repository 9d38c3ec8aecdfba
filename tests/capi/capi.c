/* The C interface, used as a program would: capi FOLDER BACKEND CACHE. Says what differs and ends with 1. */
#include "answers.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Errors of loading, each with a message. */
static void refused_loads(const char *folder) {
    tlite_load_options options;
    CHECK(tlite_load_defaults(NULL, sizeof options) == -1);
    CHECK(tlite_load_defaults(&options, sizeof options + 8) == -1);
    CHECK(names_option("size"));
    CHECK(tlite_load_defaults(&options, sizeof options) == 0);
    CHECK(options.size == sizeof options && options.backend == NULL);
    options.size = 0;
    CHECK(tlite_model_load(folder, &options) == NULL);
    CHECK(names_option("size") && says("0"));
    options.size = sizeof options;
    CHECK(tlite_model_load("no such folder", NULL) == NULL);
    CHECK(says("no such folder"));
    CHECK(tlite_last_error_code() == TLITE_ERROR_USAGE);
    CHECK(tlite_model_load(NULL, NULL) == NULL);
    CHECK(says("NULL"));
    CHECK(tlite_model_load("\xff\xfe", NULL) == NULL);
    CHECK(says("UTF-8"));
    options.backend = "cuda";
    CHECK(tlite_model_load(folder, &options) == NULL);
    CHECK(says("cuda"));
    options.backend = "reference";
    options.padding = 7;
    CHECK(tlite_model_load(folder, &options) == NULL);
    CHECK(names_option("padding") && says("7"));
    options.padding = 0;
    options.priority = "urgent";
    CHECK(tlite_model_load(folder, &options) == NULL);
    CHECK(names_option("priority") && says("urgent") && says("low, normal, high"));
    options.priority = NULL;
    options.images = "3d";
    CHECK(tlite_model_load(folder, &options) == NULL);
    CHECK(names_option("images") && says("3d") && says("auto, 1d, 2d, off"));
    options.images = NULL;
    options.recording = "tape";
    CHECK(tlite_model_load(folder, &options) == NULL);
    CHECK(names_option("recording") && says("tape"));
    CHECK(says("auto, command-buffer, qcom, off"));
    options.recording = NULL;
    CHECK(options.slice_ms == -1);
    options.slice_ms = -2;
    CHECK(tlite_model_load(folder, &options) == NULL);
    CHECK(names_option("slice_ms") && says("-2"));
    options.slice_ms = -1;
    options.kv = "q8";
    CHECK(tlite_model_load(folder, &options) == NULL);
    CHECK(says("q8"));
}

/* NULL does no harm, and bad options are refused. */
static void refused_answers(const tlite_session *session) {
    const char *stops[] = {"good", ""};
    tlite_message message = {"judge", "hello", NULL};
    char longer[200];
    tlite_generate_options options = defaults();
    answer a = {0};
    tlite_model_free(NULL);
    tlite_session_free(NULL);
    tlite_cancel(NULL);
    CHECK(tlite_session_new(NULL) == NULL);
    CHECK(tlite_session_clear(NULL) == -1);
    CHECK(tlite_generate(NULL, "x", NULL, collect, &a) == TLITE_FINISH_ERROR);
    CHECK(tlite_generate(session, NULL, NULL, collect, &a) == TLITE_FINISH_ERROR);
    CHECK(tlite_generate(session, "x", NULL, NULL, NULL) == TLITE_FINISH_ERROR);
    CHECK(tlite_generate(session, "\xc3", NULL, collect, &a) == TLITE_FINISH_ERROR);
    CHECK(says("UTF-8") && says("0"));
    options.stop = stops;
    options.stop_count = 2;
    CHECK(tlite_generate(session, "x", &options, collect, &a) == TLITE_FINISH_ERROR);
    CHECK(names_option("stop"));
    options = defaults();
    options.stop_count = 1;
    CHECK(tlite_generate(session, "x", &options, collect, &a) == TLITE_FINISH_ERROR);
    options = defaults();
    options.temperature = -1;
    CHECK(tlite_generate(session, "x", &options, collect, &a) == TLITE_FINISH_ERROR);
    CHECK(names_option("temperature") && says("-1"));
    CHECK(tlite_last_error_code() == TLITE_ERROR_USAGE);
    options = defaults();
    options.size++;
    CHECK(tlite_generate(session, "x", &options, collect, &a) == TLITE_FINISH_ERROR);
    options = defaults();
    options.template_values = "[]";
    CHECK(tlite_generate(session, "x", &options, collect, &a) == TLITE_FINISH_ERROR);
    CHECK(names_option("template_values") && says("JSON"));
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = 0;
    CHECK(tlite_generate(session, longer, NULL, collect, &a) == TLITE_FINISH_ERROR);
    CHECK(tlite_last_error_code() == TLITE_ERROR_CONTEXT_EXCEEDED);
    CHECK(tlite_chat(session, &message, 1, NULL, collect, &a) == TLITE_FINISH_ERROR);
    CHECK(names_option("role") && says("judge"));
    message.role = "user";
    message.extra = "{";
    CHECK(tlite_chat(session, &message, 1, NULL, collect, &a) == TLITE_FINISH_ERROR);
    CHECK(names_option("extra") && says("JSON"));
    message.extra = NULL;
    message.content = longer;
    CHECK(tlite_chat(session, &message, 1, NULL, collect, &a) == TLITE_FINISH_ERROR);
    CHECK(tlite_last_error_code() == TLITE_ERROR_CONTEXT_EXCEEDED);
    message.content = "refuse";
    CHECK(tlite_chat(session, &message, 1, NULL, collect, &a) == TLITE_FINISH_ERROR);
    CHECK(tlite_last_error_code() == TLITE_ERROR_TEMPLATE_REFUSED);
    CHECK(tlite_chat(session, NULL, 1, NULL, collect, &a) == TLITE_FINISH_ERROR);
    CHECK(a.pieces == 0);
}

/* Answers, their ends, and sessions that do not disturb one another. */
static void answers(const tlite_model *model) {
    tlite_generate_options options = defaults();
    tlite_session *first = tlite_session_new(model), *second = tlite_session_new(model);
    answer whole, part, a = {0};
    const char *stop;
    CHECK(first != NULL && second != NULL);
    refused_answers(first);
    whole = generate(first, 12, 0, TLITE_FINISH_MAX_TOKENS);
    CHECK(whole.pieces > 2);
    part = generate(second, 6, 0, TLITE_FINISH_MAX_TOKENS);
    CHECK(part.length < whole.length && memcmp(part.text, whole.text, part.length) == 0);
    a = generate(first, 12, 0, TLITE_FINISH_MAX_TOKENS);
    CHECK(same(&a, &whole));
    a = generate(second, 12, 2, TLITE_FINISH_CALLBACK);
    CHECK(a.pieces == 2);
    a = generate(second, 0, 0, TLITE_FINISH_MAX_TOKENS);
    CHECK(a.pieces == 0);
    CHECK(tlite_session_clear(second) == 0);
    a = generate(second, 12, 0, TLITE_FINISH_MAX_TOKENS);
    CHECK(same(&a, &whole));
    a = generate(second, 1000, 0, TLITE_FINISH_CONTEXT_FULL);
    CHECK(a.length > whole.length);

    memset(&a, 0, sizeof a);
    a.inside = first;
    options.max_tokens = 12;
    CHECK(tlite_generate(first, "hello", &options, collect, &a) == TLITE_FINISH_MAX_TOKENS);
    CHECK(same(&a, &whole));

    /* A stop string cut from the middle of the answer. */
    stop = whole.text + whole.length / 2;
    while (((unsigned char)*stop & 0xc0) == 0x80) {
        stop++;
    }
    options.stop = &stop;
    options.stop_count = 1;
    memset(&a, 0, sizeof a);
    CHECK(tlite_generate(first, "hello", &options, collect, &a) == TLITE_FINISH_STOP_STRING);
    CHECK(a.length < whole.length && memcmp(a.text, whole.text, a.length) == 0);

    options = defaults();
    options.max_tokens = 4;
    options.temperature = 0.8f;
    options.seed = 3;
    memset(&a, 0, sizeof a);
    CHECK(tlite_generate(first, "hello", &options, collect, &a) == TLITE_FINISH_MAX_TOKENS);
    tlite_session_free(first);
    tlite_session_free(second);
}

/* Turns of a conversation, which the caller keeps: with a tool, and longer than the context. */
static void conversations(const tlite_model *model) {
    tlite_message messages[16] = {{"system", "be", NULL}, {"user", "hi", NULL}};
    tlite_generate_options options = defaults();
    tlite_session *session = tlite_session_new(model), *other = tlite_session_new(model);
    answer answers[8], a;
    size_t count = 2, i;
    CHECK(session != NULL && other != NULL);
    options.max_tokens = 3;
    options.context_shift = 1;
    options.template_values = "{\"tools\": [\"f\"]}";
    for (i = 0; i < 7; i++) {
        memset(&answers[i], 0, sizeof answers[i]);
        CHECK(tlite_chat(session, messages, count, &options, collect, &answers[i]) == TLITE_FINISH_MAX_TOKENS);
        CHECK(answers[i].length == 3);
        messages[count].role = "assistant";
        messages[count++].content = answers[i].text;
        messages[count].role = i == 0 ? "tool" : "user";
        messages[count].extra = i == 0 ? "{\"name\": \"f\", \"tool_call_id\": \"1\"}" : NULL;
        messages[count++].content = "hello again";
    }
    CHECK(strcmp(messages[3].role, "tool") == 0);
    /* The values and the names of tools are in the text. */
    memset(&a, 0, sizeof a);
    options.template_values = NULL;
    CHECK(tlite_chat(other, messages, 4, &options, collect, &a) == TLITE_FINISH_MAX_TOKENS);
    CHECK(!same(&a, &answers[1]));
    options.context_shift = 0;
    CHECK(tlite_chat(session, messages, count, &options, collect, &a) == TLITE_FINISH_ERROR);
    CHECK(tlite_last_error_code() == TLITE_ERROR_CONTEXT_EXCEEDED);
    tlite_session_free(session);
    tlite_session_free(other);
}

/* A generation that another thread stops. */
typedef struct {
    const tlite_session *session;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    int pieces, cancelled;
} race;

static int wait_for_cancel(const char *text, size_t length, void *user) {
    race *r = user;
    (void)text;
    (void)length;
    pthread_mutex_lock(&r->mutex);
    r->pieces++;
    pthread_cond_signal(&r->changed);
    while (!r->cancelled) {
        pthread_cond_wait(&r->changed, &r->mutex);
    }
    pthread_mutex_unlock(&r->mutex);
    return 0;
}

static void *cancel(void *user) {
    race *r = user;
    pthread_mutex_lock(&r->mutex);
    while (r->pieces == 0) {
        pthread_cond_wait(&r->changed, &r->mutex);
    }
    tlite_cancel(r->session);
    r->cancelled = 1;
    pthread_cond_signal(&r->changed);
    pthread_mutex_unlock(&r->mutex);
    /* Errors of this thread are its own. */
    CHECK(strcmp(tlite_last_error(), "") == 0);
    return NULL;
}

static void cancelled(const tlite_model *model) {
    pthread_t thread;
    race r = {.mutex = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    tlite_session *session = tlite_session_new(model);
    answer a;
    CHECK(session != NULL);
    r.session = session;
    CHECK(pthread_create(&thread, NULL, cancel, &r) == 0);
    CHECK(tlite_generate(session, "hello", NULL, wait_for_cancel, &r) == TLITE_FINISH_CANCELLED);
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(r.pieces == 1);
    /* What was cancelled is over; the session goes on. */
    a = generate(session, 3, 0, TLITE_FINISH_MAX_TOKENS);
    CHECK(a.pieces > 0);
    /* A call that comes before the answer is not lost, unless it is taken back. */
    tlite_cancel(session);
    a = generate(session, 3, 0, TLITE_FINISH_CANCELLED);
    CHECK(a.pieces == 0);
    tlite_cancel(session);
    tlite_cancel_clear(session);
    tlite_cancel_clear(NULL);
    a = generate(session, 3, 0, TLITE_FINISH_MAX_TOKENS);
    CHECK(a.pieces > 0);
    tlite_session_free(session);
}

/* Two sessions at once, in threads of their own. */
static void *alone(void *user) {
    tlite_session *session = tlite_session_new(user);
    answer *a = malloc(sizeof *a);
    CHECK(session != NULL && a != NULL);
    *a = generate(session, 12, 0, TLITE_FINISH_MAX_TOKENS);
    tlite_session_free(session);
    return a;
}

static void side_by_side(tlite_model *model) {
    pthread_t threads[2];
    void *found[2];
    int i;
    for (i = 0; i < 2; i++) {
        CHECK(pthread_create(&threads[i], NULL, alone, model) == 0);
    }
    for (i = 0; i < 2; i++) {
        CHECK(pthread_join(threads[i], &found[i]) == 0);
    }
    CHECK(same(found[0], found[1]));
    free(found[0]);
    free(found[1]);
}

/* Lines of the log that threads said. */
typedef struct {
    pthread_mutex_t mutex;
    int lines, of_priority;
} heard;

static void hear(tlite_log_level level, const char *text, void *user) {
    heard *h = user;
    pthread_mutex_lock(&h->mutex);
    h->lines++;
    if (strstr(text, "--priority high") != NULL) {
        CHECK(level == TLITE_LOG_LEVEL_WARNING);
        h->of_priority++;
    }
    pthread_mutex_unlock(&h->mutex);
}

static int count_bytes(const char *text, size_t length, void *user) {
    CHECK(strlen(text) == length);
    *(size_t *)user += length;
    return 0;
}

/* A list for a folder with or without kernels that failed; none after it is cleared. */
static void quarantine(const char *cache) {
    size_t bytes = 0;
    CHECK(tlite_quarantine_list(cache, count_bytes, &bytes) >= 0);
    CHECK(bytes >= 2);
    CHECK(tlite_quarantine_clear(cache) >= 0);
    CHECK(tlite_quarantine_list(cache, count_bytes, &bytes) == 0);
    CHECK(tlite_quarantine_clear(NULL) == -1);
    CHECK(tlite_last_error_code() == TLITE_ERROR_USAGE);
}

int main(int argc, char **argv) {
    heard log = {.mutex = PTHREAD_MUTEX_INITIALIZER};
    tlite_load_options options;
    tlite_model *model;
    tlite_session *session;
    answer a;
    if (argc != 4) {
        fprintf(stderr, "usage: capi FOLDER BACKEND CACHE\n");
        return 2;
    }
    CHECK(strcmp(tlite_last_error(), "") == 0);
    CHECK(tlite_last_error_code() == TLITE_ERROR_NONE);
    refused_loads(argv[1]);
    CHECK(tlite_load_defaults(&options, sizeof options) == 0);
    options.backend = argv[2];
    /* The host has no devices to look for, and loads no drivers, which are no part of what valgrind is to look at. */
    if (strcmp(argv[2], "reference") != 0) {
        options.device = "no such device";
        CHECK(tlite_model_load(argv[1], &options) == NULL);
        CHECK(tlite_last_error_code() == TLITE_ERROR_NO_DEVICE);
        options.device = NULL;
    }
    options.context = 40;
    options.kernel_cache = argv[3];
    options.images = "off";
    options.recording = "off";
    options.slice_ms = 0;
    /* Not on drivers for CPUs, nor on the host. */
    options.priority = "high";
    CHECK(tlite_set_log(NULL, NULL) == 0);
    CHECK(tlite_set_log(hear, &log) == 0);
    model = tlite_model_load(argv[1], &options);
    CHECK(model != NULL);
    CHECK(log.of_priority == 1 && log.lines > 0);
    tlite_model_free(model);
    log.lines = 0;
    CHECK(tlite_set_log(NULL, NULL) == 0);
    model = tlite_model_load(argv[1], &options);
    CHECK(model != NULL);
    CHECK(log.lines == 0);
    quarantine(argv[3]);
    answers(model);
    conversations(model);
    cancelled(model);
    side_by_side(model);
    /* A session outlives the caller's hold of its model. */
    session = tlite_session_new(model);
    CHECK(session != NULL);
    tlite_model_free(model);
    a = generate(session, 3, 0, TLITE_FINISH_MAX_TOKENS);
    CHECK(a.pieces > 0);
    tlite_session_free(session);
    printf("%s\n", tlite_version());
    return 0;
}
