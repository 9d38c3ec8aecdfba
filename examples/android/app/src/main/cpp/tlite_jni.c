/* JNI functions for class org.transformerlite.Native, on top of the C interface. Texts are passed as
 * UTF-8 bytes: JNI strings use modified UTF-8, which differs for characters such as emoji. */
#include "tlite.h"

#include <jni.h>
#include <stdlib.h>
#include <string.h>

#define NATIVE(result, name) JNIEXPORT result JNICALL Java_org_transformerlite_Native_##name

static void out_of_memory(JNIEnv *env) {
    jclass class = (*env)->FindClass(env, "java/lang/OutOfMemoryError");
    if (class != NULL) (*env)->ThrowNew(env, class, "transformer-lite: not enough memory for a text");
}

/* A zero-terminated copy of the bytes, to be freed; NULL for null and after an exception. */
static char *text_of(JNIEnv *env, jbyteArray bytes) {
    if (bytes == NULL) return NULL;
    jsize length = (*env)->GetArrayLength(env, bytes);
    char *text = malloc((size_t)length + 1);
    if (text == NULL) {
        out_of_memory(env);
        return NULL;
    }
    (*env)->GetByteArrayRegion(env, bytes, 0, length, (jbyte *)text);
    text[length] = 0;
    return text;
}

static void free_texts(char **texts, jsize count) {
    if (texts == NULL) return;
    for (jsize i = 0; i < count; i++) free(texts[i]);
    free(texts);
}

static jbyteArray bytes_of(JNIEnv *env, const char *text, size_t length) {
    jbyteArray bytes = (*env)->NewByteArray(env, (jsize)length);
    if (bytes != NULL) (*env)->SetByteArrayRegion(env, bytes, 0, (jsize)length, (const jbyte *)text);
    return bytes;
}

/* The log listener, a global reference. */
typedef struct {
    jobject object;
    jmethodID line;
} log_listener;

static JavaVM *machine;
static log_listener *logged;

JNIEXPORT jint JNICALL JNI_OnLoad(JavaVM *vm, void *reserved) {
    (void)reserved;
    machine = vm;
    return JNI_VERSION_1_6;
}

/* The environment of this thread, which may belong to the library; NULL if memory is short. */
static JNIEnv *environment(int *attached) {
    void *env = NULL;
    *attached = 0;
    if ((*machine)->GetEnv(machine, &env, JNI_VERSION_1_6) == JNI_OK) return env;
#ifdef __ANDROID__
    JNIEnv *made = NULL;
#else
    void *made = NULL;
#endif
    *attached = (*machine)->AttachCurrentThread(machine, &made, NULL) == JNI_OK;
    return *attached ? made : NULL;
}

static void log_line(tlite_log_level level, const char *text, void *user) {
    const log_listener *to = user;
    int attached;
    JNIEnv *env = environment(&attached);
    if (env == NULL) return;
    /* These functions must not be called while an exception of the caller is pending. */
    if (!(*env)->ExceptionCheck(env)) {
        jbyteArray bytes = bytes_of(env, text, strlen(text));
        if (bytes != NULL) (*env)->CallVoidMethod(env, to->object, to->line, (jint)level, bytes);
        (*env)->ExceptionClear(env);
        (*env)->DeleteLocalRef(env, bytes);
    }
    if (attached) (*machine)->DetachCurrentThread(machine);
}

/* Must not be called from several threads at once. */
NATIVE(jboolean, setLog)(JNIEnv *env, jclass class, jobject listener) {
    (void)class;
    log_listener *next = NULL;
    if (listener != NULL) {
        jmethodID line = (*env)->GetMethodID(env, (*env)->GetObjectClass(env, listener), "line", "(I[B)V");
        if (line == NULL) return JNI_FALSE;
        next = malloc(sizeof *next);
        jobject object = (*env)->NewGlobalRef(env, listener);
        if (next == NULL || object == NULL) {
            free(next);
            if (object != NULL) (*env)->DeleteGlobalRef(env, object);
            out_of_memory(env);
            return JNI_FALSE;
        }
        next->object = object;
        next->line = line;
    }
    /* After this call the previous listener is no longer used. */
    jboolean set = tlite_set_log(next == NULL ? NULL : log_line, next) == 0;
    log_listener *gone = set ? logged : next;
    if (set) logged = next;
    if (gone != NULL) (*env)->DeleteGlobalRef(env, gone->object);
    free(gone);
    return set;
}

NATIVE(jint, lastErrorCode)(JNIEnv *env, jclass class) {
    (void)env;
    (void)class;
    return tlite_last_error_code();
}

NATIVE(jbyteArray, lastError)(JNIEnv *env, jclass class) {
    (void)class;
    const char *text = tlite_last_error();
    return bytes_of(env, text, strlen(text));
}

/* Copies of `count` texts, which may be null; NULL after an exception. */
static char **texts_of(JNIEnv *env, jobjectArray array, jsize count) {
    char **texts = calloc((size_t)count + 1, sizeof *texts);
    if (texts == NULL) {
        out_of_memory(env);
        return NULL;
    }
    for (jsize i = 0; i < count; i++) {
        jbyteArray bytes = (*env)->GetObjectArrayElement(env, array, i);
        texts[i] = text_of(env, bytes);
        (*env)->DeleteLocalRef(env, bytes);
    }
    if (!(*env)->ExceptionCheck(env)) return texts;
    free_texts(texts, count);
    return NULL;
}

/* A listener that a thread of the library or of a caller calls. */
typedef struct {
    JNIEnv *env;
    jobject object;
    jmethodID first, second;
} listening;

/* Finds the methods of a listener; false after an exception. */
static int listen_to(JNIEnv *env, jobject object, const char *first, const char *first_type, const char *second,
                     const char *second_type, listening *to) {
    jclass class = (*env)->GetObjectClass(env, object);
    to->env = env;
    to->object = object;
    to->first = (*env)->GetMethodID(env, class, first, first_type);
    to->second = to->first == NULL || second == NULL ? NULL : (*env)->GetMethodID(env, class, second, second_type);
    return to->first != NULL && (second == NULL || to->second != NULL);
}

static int report(const char *what, uint64_t done, uint64_t total, void *user) {
    listening *to = user;
    JNIEnv *env = to->env;
    jbyteArray bytes = bytes_of(env, what, strlen(what));
    if (bytes == NULL) return 1;
    jboolean more = (*env)->CallBooleanMethod(env, to->object, to->first, bytes, (jlong)done, (jlong)total);
    (*env)->DeleteLocalRef(env, bytes);
    return (*env)->ExceptionCheck(env) || !more;
}

/* The order of the texts and numbers of class LoadOptions. */
enum { BACKEND, DEVICE, KV, PRIORITY, CACHE, ACT, IMAGES, RECORDING, LIMITS, LOAD_TEXTS };
enum { CONTEXT, PADDING, SLICE_MS, THREADS, LOAD_NUMBERS };

/* Options whose texts are to be freed; NULL after an exception or a failure. */
static char **load_options_of(JNIEnv *env, jobjectArray texts, jlongArray numbers, tlite_load_options *options) {
    jlong n[LOAD_NUMBERS];
    (*env)->GetLongArrayRegion(env, numbers, 0, LOAD_NUMBERS, n);
    char **t = texts_of(env, texts, LOAD_TEXTS);
    if (t == NULL || tlite_load_defaults(options, sizeof *options) != 0) return t;
    options->backend = t[BACKEND];
    options->device = t[DEVICE];
    options->kv = t[KV];
    options->priority = t[PRIORITY];
    options->kernel_cache = t[CACHE];
    options->act = t[ACT];
    options->images = t[IMAGES];
    options->recording = t[RECORDING];
    options->limits = t[LIMITS];
    options->context = (size_t)n[CONTEXT];
    options->padding = (size_t)n[PADDING];
    options->slice_ms = (ptrdiff_t)n[SLICE_MS];
    options->threads = (size_t)n[THREADS];
    return t;
}

NATIVE(jlong, modelLoad)(JNIEnv *env, jclass class, jbyteArray path, jobjectArray texts, jlongArray numbers, jobject progress) {
    (void)class;
    listening to;
    if (progress != NULL && !listen_to(env, progress, "report", "([BJJ)Z", NULL, NULL, &to)) return 0;
    tlite_load_options options;
    char *path_text = text_of(env, path), **all = load_options_of(env, texts, numbers, &options);
    tlite_model *model = NULL;
    if (!(*env)->ExceptionCheck(env) && all != NULL) {
        options.on_progress = progress == NULL ? NULL : report;
        options.progress_user = &to;
        model = tlite_model_load(path_text, &options);
    }
    free(path_text);
    free_texts(all, LOAD_TEXTS);
    return (jlong)model;
}

NATIVE(void, modelFree)(JNIEnv *env, jclass class, jlong model) {
    (void)env;
    (void)class;
    tlite_model_free((tlite_model *)model);
}

NATIVE(jlong, sessionNew)(JNIEnv *env, jclass class, jlong model) {
    (void)env;
    (void)class;
    return (jlong)tlite_session_new((const tlite_model *)model);
}

NATIVE(void, sessionFree)(JNIEnv *env, jclass class, jlong session) {
    (void)env;
    (void)class;
    tlite_session_free((tlite_session *)session);
}

NATIVE(jboolean, sessionClear)(JNIEnv *env, jclass class, jlong session) {
    (void)env;
    (void)class;
    return tlite_session_clear((const tlite_session *)session) == 0;
}

NATIVE(void, cancel)(JNIEnv *env, jclass class, jlong session) {
    (void)env;
    (void)class;
    tlite_cancel((const tlite_session *)session);
}

NATIVE(void, cancelClear)(JNIEnv *env, jclass class, jlong session) {
    (void)env;
    (void)class;
    tlite_cancel_clear((const tlite_session *)session);
}

/* Passes a chosen token and the likeliest ones. */
static int token(const tlite_log_prob *chosen, const tlite_log_prob *top, size_t count, void *user) {
    listening *to = user;
    JNIEnv *env = to->env;
    jsize all = (jsize)count + 1;
    jintArray ids = (*env)->NewIntArray(env, all);
    jfloatArray probs = ids == NULL ? NULL : (*env)->NewFloatArray(env, all);
    jclass bytes_class = probs == NULL ? NULL : (*env)->FindClass(env, "[B");
    jobjectArray texts = bytes_class == NULL ? NULL : (*env)->NewObjectArray(env, all, bytes_class, NULL);
    jboolean more = texts != NULL;
    for (jsize i = 0; more && i < all; i++) {
        const tlite_log_prob *of = i == 0 ? chosen : &top[i - 1];
        jint id = (jint)of->token;
        (*env)->SetIntArrayRegion(env, ids, i, 1, &id);
        (*env)->SetFloatArrayRegion(env, probs, i, 1, &of->log_prob);
        jbyteArray text = bytes_of(env, of->text, of->length);
        more = text != NULL;
        if (more) (*env)->SetObjectArrayElement(env, texts, i, text);
        (*env)->DeleteLocalRef(env, text);
    }
    if (more) more = (*env)->CallBooleanMethod(env, to->object, to->second, ids, probs, texts);
    (*env)->DeleteLocalRef(env, ids);
    (*env)->DeleteLocalRef(env, probs);
    (*env)->DeleteLocalRef(env, bytes_class);
    (*env)->DeleteLocalRef(env, texts);
    return (*env)->ExceptionCheck(env) || !more;
}

static int piece(const char *text, size_t length, void *user) {
    listening *to = user;
    jbyteArray bytes = bytes_of(to->env, text, length);
    if (bytes == NULL) return 1;
    jboolean more = (*to->env)->CallBooleanMethod(to->env, to->object, to->first, bytes);
    (*to->env)->DeleteLocalRef(to->env, bytes);
    return (*to->env)->ExceptionCheck(to->env) || !more;
}

static int listen_to_answer(JNIEnv *env, jobject listener, listening *to) {
    return listen_to(env, listener, "piece", "([B)Z", "token", "([I[F[[B)Z", to);
}

static void free_messages(tlite_message *messages, jsize count) {
    for (jsize i = 0; i < count; i++) {
        free((char *)messages[i].role);
        free((char *)messages[i].content);
    }
    free(messages);
}

/* Messages from texts with roles at even and contents at odd indices; NULL after an exception. */
static tlite_message *messages_of(JNIEnv *env, jobjectArray texts, jsize count) {
    tlite_message *messages = calloc((size_t)count + 1, sizeof *messages);
    if (messages == NULL) {
        out_of_memory(env);
        return NULL;
    }
    for (jsize i = 0; i < 2 * count; i++) {
        jbyteArray bytes = (*env)->GetObjectArrayElement(env, texts, i);
        char *text = text_of(env, bytes);
        (*env)->DeleteLocalRef(env, bytes);
        if (i % 2 == 0) {
            messages[i / 2].role = text;
        } else {
            messages[i / 2].content = text;
        }
        if ((*env)->ExceptionCheck(env)) {
            free_messages(messages, count);
            return NULL;
        }
    }
    return messages;
}

/* The order of the texts and numbers of class GenerateOptions. */
enum { TEMPLATE_VALUES, GRAMMAR, JSON_SCHEMA, GENERATE_TEXTS };
enum { MAX_TOKENS, TOP_K, SEED, CONTEXT_SHIFT, LOG_PROBS, LAST_N, GENERATE_NUMBERS };
enum { TEMPERATURE, TOP_P, MIN_P, REPETITION, FREQUENCY, PRESENCE, TYPICAL_P, DRY, GENERATE_FLOATS };

/* Options with what is to be freed after the call. */
typedef struct {
    tlite_generate_options options;
    char **texts, **stops;
    jsize stop_count;
} generating;

static void free_generating(generating *g) {
    free_texts(g->texts, GENERATE_TEXTS);
    free_texts(g->stops, g->stop_count);
}

/* False after an exception. */
static int generating_of(JNIEnv *env, jobjectArray texts, jlongArray numbers, jfloatArray floats, jobjectArray stops, generating *g) {
    jlong n[GENERATE_NUMBERS];
    jfloat f[GENERATE_FLOATS];
    (*env)->GetLongArrayRegion(env, numbers, 0, GENERATE_NUMBERS, n);
    (*env)->GetFloatArrayRegion(env, floats, 0, GENERATE_FLOATS, f);
    g->stop_count = (*env)->GetArrayLength(env, stops);
    g->texts = texts_of(env, texts, GENERATE_TEXTS);
    g->stops = g->texts == NULL ? NULL : texts_of(env, stops, g->stop_count);
    tlite_generate_options *o = &g->options;
    if (g->stops == NULL || tlite_generate_defaults(o, sizeof *o) != 0) {
        free_generating(g);
        return 0;
    }
    o->template_values = g->texts[TEMPLATE_VALUES];
    o->grammar = g->texts[GRAMMAR];
    o->json_schema = g->texts[JSON_SCHEMA];
    o->stop = (const char *const *)g->stops;
    o->stop_count = (size_t)g->stop_count;
    o->max_tokens = (size_t)n[MAX_TOKENS];
    o->top_k = (size_t)n[TOP_K];
    o->seed = (uint64_t)n[SEED];
    o->context_shift = n[CONTEXT_SHIFT] != 0;
    o->log_probs = (ptrdiff_t)n[LOG_PROBS];
    o->penalty_last_n = (size_t)n[LAST_N];
    o->temperature = f[TEMPERATURE];
    o->top_p = f[TOP_P];
    o->min_p = f[MIN_P];
    o->repetition_penalty = f[REPETITION];
    o->frequency_penalty = f[FREQUENCY];
    o->presence_penalty = f[PRESENCE];
    o->typical_p = f[TYPICAL_P];
    o->dry_multiplier = f[DRY];
    if (o->log_probs >= 0) o->on_token = token;
    return 1;
}

/* Answers messages, or continues a text: the only element of `texts`. */
NATIVE(jint, generate)(JNIEnv *env, jclass class, jlong session, jboolean chat, jobjectArray texts, jobjectArray option_texts,
                       jlongArray numbers, jfloatArray floats, jobjectArray stops, jobject listener) {
    (void)class;
    listening to;
    generating g;
    if (!listen_to_answer(env, listener, &to)) return TLITE_FINISH_ERROR;
    if (!generating_of(env, option_texts, numbers, floats, stops, &g)) return TLITE_FINISH_ERROR;
    jsize count = (*env)->GetArrayLength(env, texts);
    tlite_finish finish = TLITE_FINISH_ERROR;
    if (chat) {
        tlite_message *messages = messages_of(env, texts, count / 2);
        if (messages != NULL) {
            finish = tlite_chat((const tlite_session *)session, messages, (size_t)count / 2, &g.options, piece, &to);
            free_messages(messages, count / 2);
        }
    } else {
        char **prompt = texts_of(env, texts, count);
        if (prompt != NULL) {
            finish = tlite_generate((const tlite_session *)session, prompt[0], &g.options, piece, &to);
            free_texts(prompt, count);
        }
    }
    free_generating(&g);
    return finish;
}

/* Counts and times in the order of the struct. */
static jdoubleArray metrics_of(JNIEnv *env, const tlite_metrics *m) {
    jdouble all[] = {(jdouble)m->prompt_tokens, (jdouble)m->reused_tokens, (jdouble)m->tokens, (jdouble)m->decode_tokens,
                     (jdouble)m->forgotten_tokens, m->first_token_s, m->decode_s};
    jsize count = sizeof all / sizeof *all;
    jdoubleArray array = (*env)->NewDoubleArray(env, count);
    if (array != NULL) (*env)->SetDoubleArrayRegion(env, array, 0, count, all);
    return array;
}

NATIVE(jdoubleArray, sessionMetrics)(JNIEnv *env, jclass class, jlong session) {
    (void)class;
    tlite_metrics m;
    return tlite_session_metrics((const tlite_session *)session, &m, sizeof m) == 0 ? metrics_of(env, &m) : NULL;
}

/* A request and its listener, a global reference, which threads of the library call. */
typedef struct {
    tlite_request *request;
    listening to;
} requested;

/* Calls `call` on a thread of the library. An exception ends the request; the listener has kept it. */
static int on_thread(requested *r, int (*call)(requested *, const void *), const void *what) {
    int attached;
    JNIEnv *env = environment(&attached);
    if (env == NULL) return 1;
    r->to.env = env;
    int stop = call(r, what);
    (*env)->ExceptionClear(env);
    if (attached) (*machine)->DetachCurrentThread(machine);
    return stop;
}

typedef struct {
    const char *text;
    size_t length;
} slice;

typedef struct {
    const tlite_log_prob *chosen, *top;
    size_t count;
} probs;

static int call_piece(requested *r, const void *what) {
    const slice *s = what;
    return piece(s->text, s->length, &r->to);
}

static int call_token(requested *r, const void *what) {
    const probs *p = what;
    return token(p->chosen, p->top, p->count, &r->to);
}

static int piece_on_thread(const char *text, size_t length, void *user) {
    slice s = {text, length};
    return on_thread(user, call_piece, &s);
}

static int token_on_thread(const tlite_log_prob *chosen, const tlite_log_prob *top, size_t count, void *user) {
    probs p = {chosen, top, count};
    return on_thread(user, call_token, &p);
}

NATIVE(jlong, batcherLoad)(JNIEnv *env, jclass class, jbyteArray path, jobjectArray texts, jlongArray numbers, jlong sequences) {
    (void)class;
    tlite_load_options options;
    char *path_text = text_of(env, path), **all = load_options_of(env, texts, numbers, &options);
    tlite_batcher *batcher = NULL;
    if (!(*env)->ExceptionCheck(env) && all != NULL) batcher = tlite_batcher_load(path_text, &options, (size_t)sequences);
    free(path_text);
    free_texts(all, LOAD_TEXTS);
    return (jlong)batcher;
}

NATIVE(void, batcherFree)(JNIEnv *env, jclass class, jlong batcher) {
    (void)env;
    (void)class;
    tlite_batcher_free((tlite_batcher *)batcher);
}

static void free_requested(JNIEnv *env, requested *r) {
    tlite_request_free(r->request);
    if (r->to.object != NULL) (*env)->DeleteGlobalRef(env, r->to.object);
    free(r);
}

NATIVE(jlong, submit)(JNIEnv *env, jclass class, jlong batcher, jobjectArray texts, jobjectArray option_texts, jlongArray numbers,
                      jfloatArray floats, jobjectArray stops, jobject listener) {
    (void)class;
    generating g;
    requested *r = calloc(1, sizeof *r);
    if (r == NULL) {
        out_of_memory(env);
        return 0;
    }
    if (!listen_to_answer(env, listener, &r->to) || !generating_of(env, option_texts, numbers, floats, stops, &g)) {
        free(r);
        return 0;
    }
    r->to.object = (*env)->NewGlobalRef(env, listener);
    jsize count = (*env)->GetArrayLength(env, texts) / 2;
    tlite_message *messages = r->to.object == NULL ? NULL : messages_of(env, texts, count);
    if (messages != NULL) {
        if (g.options.on_token != NULL) g.options.on_token = token_on_thread;
        r->request = tlite_batcher_chat((const tlite_batcher *)batcher, messages, (size_t)count, &g.options, piece_on_thread, r);
        free_messages(messages, count);
    }
    free_generating(&g);
    if (r->request != NULL) return (jlong)r;
    free_requested(env, r);
    return 0;
}

NATIVE(jint, requestWait)(JNIEnv *env, jclass class, jlong request) {
    (void)env;
    (void)class;
    return tlite_request_wait(((const requested *)request)->request);
}

NATIVE(void, requestCancel)(JNIEnv *env, jclass class, jlong request) {
    (void)env;
    (void)class;
    tlite_request_cancel(((const requested *)request)->request);
}

NATIVE(jdoubleArray, requestMetrics)(JNIEnv *env, jclass class, jlong request) {
    (void)class;
    tlite_metrics m;
    return tlite_request_metrics(((const requested *)request)->request, &m, sizeof m) == 0 ? metrics_of(env, &m) : NULL;
}

NATIVE(void, requestFree)(JNIEnv *env, jclass class, jlong request) {
    (void)class;
    free_requested(env, (requested *)request);
}

NATIVE(jboolean, convert)(JNIEnv *env, jclass class, jbyteArray source, jbyteArray output, jobject progress) {
    (void)class;
    listening to;
    if (progress != NULL && !listen_to(env, progress, "report", "([BJJ)Z", NULL, NULL, &to)) return JNI_FALSE;
    char *from = text_of(env, source), *into = text_of(env, output);
    int done = !(*env)->ExceptionCheck(env) && tlite_convert(from, into, progress == NULL ? NULL : report, &to) == 0;
    free(from);
    free(into);
    return (jboolean)done;
}

NATIVE(jlong, runnerLoad)(JNIEnv *env, jclass class, jbyteArray path, jobjectArray texts, jlongArray numbers) {
    (void)class;
    tlite_load_options options;
    char *path_text = text_of(env, path), **all = load_options_of(env, texts, numbers, &options);
    tlite_runner *runner = NULL;
    if (!(*env)->ExceptionCheck(env) && all != NULL) runner = tlite_runner_load(path_text, &options);
    free(path_text);
    free_texts(all, LOAD_TEXTS);
    return (jlong)runner;
}

NATIVE(void, runnerFree)(JNIEnv *env, jclass class, jlong runner) {
    (void)env;
    (void)class;
    tlite_runner_free((tlite_runner *)runner);
}

NATIVE(void, runnerCancel)(JNIEnv *env, jclass class, jlong runner) {
    (void)env;
    (void)class;
    tlite_runner_cancel((const tlite_runner *)runner);
}

NATIVE(jlong, runnerCount)(JNIEnv *env, jclass class, jlong runner, jboolean outputs) {
    (void)env;
    (void)class;
    const tlite_runner *r = (const tlite_runner *)runner;
    return (jlong)(outputs ? tlite_runner_output_count(r) : tlite_runner_input_count(r));
}

/* Name and axes: an array of texts. The numbers are the type, whether the input is optional, and the rank. */
NATIVE(jobjectArray, runnerInfo)(JNIEnv *env, jclass class, jlong runner, jboolean output, jlong index, jlongArray numbers) {
    (void)class;
    const tlite_runner *r = (const tlite_runner *)runner;
    tlite_tensor_info info;
    int failed = output ? tlite_runner_output(r, (size_t)index, &info) : tlite_runner_input(r, (size_t)index, &info);
    if (failed) return NULL;
    jlong three[] = {(jlong)info.element_type, info.optional, info.rank};
    (*env)->SetLongArrayRegion(env, numbers, 0, 3, three);
    jsize rank = info.rank < 0 ? 0 : (jsize)info.rank;
    jclass bytes_class = (*env)->FindClass(env, "[B");
    jobjectArray texts = bytes_class == NULL ? NULL : (*env)->NewObjectArray(env, rank + 1, bytes_class, NULL);
    for (jsize i = 0; texts != NULL && i <= rank; i++) {
        const char *text = i == 0 ? info.name : info.axes[i - 1];
        jbyteArray bytes = bytes_of(env, text, strlen(text));
        if (bytes == NULL) return NULL;
        (*env)->SetObjectArrayElement(env, texts, i, bytes);
        (*env)->DeleteLocalRef(env, bytes);
    }
    return texts;
}

/* Sizes, to be freed; NULL after an exception. */
static size_t *sizes_of(JNIEnv *env, jlongArray shape, size_t *rank) {
    jsize count = (*env)->GetArrayLength(env, shape);
    size_t *sizes = calloc((size_t)count + 1, sizeof *sizes);
    if (sizes == NULL) out_of_memory(env);
    for (jsize i = 0; sizes != NULL && i < count; i++) {
        jlong size;
        (*env)->GetLongArrayRegion(env, shape, i, 1, &size);
        sizes[i] = (size_t)size;
    }
    *rank = (size_t)count;
    return sizes;
}

/* Runs with direct buffers of `bytes` each. */
NATIVE(jboolean, runnerRun)(JNIEnv *env, jclass class, jlong runner, jobjectArray names, jintArray types, jobjectArray shapes,
                            jobjectArray data, jlongArray bytes) {
    (void)class;
    jsize count = (*env)->GetArrayLength(env, names);
    char **texts = texts_of(env, names, count);
    tlite_tensor *tensors = texts == NULL ? NULL : calloc((size_t)count + 1, sizeof *tensors);
    if (texts != NULL && tensors == NULL) out_of_memory(env);
    for (jsize i = 0; tensors != NULL && i < count && !(*env)->ExceptionCheck(env); i++) {
        jlong length;
        jobject buffer = (*env)->GetObjectArrayElement(env, data, i);
        jlongArray shape = (*env)->GetObjectArrayElement(env, shapes, i);
        (*env)->GetLongArrayRegion(env, bytes, i, 1, &length);
        (*env)->GetIntArrayRegion(env, types, i, 1, (jint *)&tensors[i].element_type);
        tensors[i].name = texts[i];
        tensors[i].data = (*env)->GetDirectBufferAddress(env, buffer);
        tensors[i].bytes = (size_t)length;
        tensors[i].shape = sizes_of(env, shape, &tensors[i].rank);
        (*env)->DeleteLocalRef(env, buffer);
        (*env)->DeleteLocalRef(env, shape);
    }
    int done = tensors != NULL && !(*env)->ExceptionCheck(env) &&
               tlite_runner_run((const tlite_runner *)runner, tensors, (size_t)count) == 0;
    for (jsize i = 0; tensors != NULL && i < count; i++) free((void *)tensors[i].shape);
    free(tensors);
    free_texts(texts, count);
    return (jboolean)done;
}

/* Fills a direct buffer of `bytes`. */
NATIVE(jboolean, runnerRead)(JNIEnv *env, jclass class, jlong runner, jbyteArray name, jint type, jobject buffer, jlong bytes) {
    (void)class;
    char *text = text_of(env, name);
    if ((*env)->ExceptionCheck(env)) return JNI_FALSE;
    void *data = (*env)->GetDirectBufferAddress(env, buffer);
    int done = tlite_runner_read((const tlite_runner *)runner, text, type, data, (size_t)bytes) == 0;
    free(text);
    return (jboolean)done;
}
