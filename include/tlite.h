/* The C interface of Transformer-Lite. Generated from crates/capi/src; change it there.
 *
 * Functions may be called from any thread. String arguments are UTF-8, end with a 0 byte, belong to
 * the caller and are read only during the call. Pointers must be NULL or point to what the comments
 * describe. A NULL pointer where a value is required is an error and does no harm. Return values
 * signal failure; tlite_last_error returns the message and tlite_last_error_code the kind. Models,
 * sessions, batchers, requests and runners belong to the caller, who must free each once with the
 * matching function.
 *
 * Model folders and requests are untrusted. Panics of libraries that read them are caught and
 * returned as failures, but only if panics unwind: do not build the library with panic = "abort".
 * The Rust runtime prints a line for each caught panic to standard error. */

#ifndef TLITE_H
#define TLITE_H


#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 Kind of failure.
 */
typedef enum {
  /*
   No call on this thread has failed.
   */
  TLITE_ERROR_NONE = 0,
  /*
   A failure without a code of its own.
   */
  TLITE_ERROR_OTHER = 1,
  /*
   An argument or an option has an invalid value.
   */
  TLITE_ERROR_USAGE = 2,
  /*
   A prompt or conversation has more tokens than the context holds.
   */
  TLITE_ERROR_CONTEXT_EXCEEDED = 3,
  /*
   The model has no chat template, so it cannot answer a conversation.
   */
  TLITE_ERROR_NO_TEMPLATE = 4,
  /*
   The chat template rejected the messages.
   */
  TLITE_ERROR_TEMPLATE_REFUSED = 5,
  /*
   A token ID is outside the model's vocabulary.
   */
  TLITE_ERROR_TOKEN_OUT_OF_RANGE = 6,
  /*
   The prompt cache file is damaged or is not a prompt cache.
   */
  TLITE_ERROR_PROMPT_CACHE_DAMAGED = 7,
  /*
   The prompt cache was written by another model or with another KV cache type.
   */
  TLITE_ERROR_PROMPT_CACHE_MISMATCH = 8,
  /*
   No driver was found, or no device has the given name.
   */
  TLITE_ERROR_NO_DEVICE = 9,
  /*
   A device or the host ran out of memory.
   */
  TLITE_ERROR_OUT_OF_MEMORY = 10,
  /*
   The device was lost. Models and sessions on it can no longer be used.
   */
  TLITE_ERROR_DEVICE_LOST = 11,
  /*
   The operating system refused an operation on a file.
   */
  TLITE_ERROR_IO = 12,
  /*
   A file's content is not valid for its format.
   */
  TLITE_ERROR_INVALID_FILE = 13,
  /*
   The work was interrupted: by a limit of time, or because a callback returned a value other
   than 0.
   */
  TLITE_ERROR_INTERRUPTED = 14,
  /*
   A bug in the library.
   */
  TLITE_ERROR_INTERNAL = 15,
  /*
   Valid, but not implemented: an operator, a tensor type, an architecture.
   */
  TLITE_ERROR_UNSUPPORTED = 16,
  /*
   Sizes or element types do not fit one another, or the model's.
   */
  TLITE_ERROR_SHAPE_MISMATCH = 17,
  /*
   An input, the size of an open dimension or the elements of a weight are not given.
   */
  TLITE_ERROR_MISSING_INPUT = 18,
  /*
   Another call or process is using the session, file or folder.
   */
  TLITE_ERROR_BUSY = 19,
  /*
   A model or a file exceeds one of the limits.
   */
  TLITE_ERROR_LIMIT_EXCEEDED = 20,
  /*
   The model computed logits that are NaN or infinite.
   */
  TLITE_ERROR_NOT_FINITE = 21,
} tlite_error;

/*
 Severity of a log line.
 */
typedef enum {
  /*
   A failure that no call returns as its own error.
   */
  TLITE_LOG_LEVEL_ERROR = 1,
  /*
   Something differs from what was requested or from the best case: notes of loading,
   rejections by drivers.
   */
  TLITE_LOG_LEVEL_WARNING = 2,
  /*
   Information, such as memory use.
   */
  TLITE_LOG_LEVEL_INFO = 3,
} tlite_log_level;

/*
 Why an answer ended.
 */
typedef enum {
  /*
   The call failed; see `tlite_last_error`. Text delivered before is valid.
   */
  TLITE_FINISH_ERROR = -1,
  /*
   The model ended the answer.
   */
  TLITE_FINISH_END_OF_TEXT = 0,
  /*
   A stop string was generated.
   */
  TLITE_FINISH_STOP_STRING = 1,
  /*
   The maximum number of tokens was generated.
   */
  TLITE_FINISH_MAX_TOKENS = 2,
  /*
   The KV cache has no room for another token.
   */
  TLITE_FINISH_CONTEXT_FULL = 3,
  /*
   `tlite_cancel` was called.
   */
  TLITE_FINISH_CANCELLED = 4,
  /*
   A callback returned a value other than 0; `tlite_last_error` names it. Text delivered before
   is valid.
   */
  TLITE_FINISH_CALLBACK = 5,
} tlite_finish;

/*
 Element type of a tensor. Types with fewer than 8 bits take a byte for each element.
 */
typedef enum {
  /*
   32-bit float.
   */
  TLITE_TYPE_F32 = 0,
  /*
   16-bit float.
   */
  TLITE_TYPE_F16 = 1,
  /*
   64-bit signed integer.
   */
  TLITE_TYPE_I64 = 2,
  /*
   32-bit signed integer.
   */
  TLITE_TYPE_I32 = 3,
  /*
   32-bit unsigned integer.
   */
  TLITE_TYPE_U32 = 4,
  /*
   8-bit unsigned integer.
   */
  TLITE_TYPE_U8 = 5,
  /*
   8-bit signed integer.
   */
  TLITE_TYPE_I8 = 6,
  /*
   Truth value: a byte that is 0 or 1.
   */
  TLITE_TYPE_BOOL = 7,
  /*
   64-bit float.
   */
  TLITE_TYPE_F64 = 8,
  /*
   bfloat16: the upper half of a 32-bit float.
   */
  TLITE_TYPE_BF16 = 9,
  /*
   16-bit signed integer.
   */
  TLITE_TYPE_I16 = 10,
  /*
   16-bit unsigned integer.
   */
  TLITE_TYPE_U16 = 11,
  /*
   64-bit unsigned integer.
   */
  TLITE_TYPE_U64 = 12,
  /*
   4-bit signed integer.
   */
  TLITE_TYPE_I4 = 13,
  /*
   4-bit unsigned integer.
   */
  TLITE_TYPE_U4 = 14,
  /*
   2-bit signed integer.
   */
  TLITE_TYPE_I2 = 15,
  /*
   2-bit unsigned integer.
   */
  TLITE_TYPE_U2 = 16,
  /*
   8-bit float, `float8e4m3fn` of ONNX.
   */
  TLITE_TYPE_F8E4M3 = 17,
  /*
   8-bit float, `float8e4m3fnuz` of ONNX.
   */
  TLITE_TYPE_F8E4M3_UZ = 18,
  /*
   8-bit float, `float8e5m2` of ONNX.
   */
  TLITE_TYPE_F8E5M2 = 19,
  /*
   8-bit float, `float8e5m2fnuz` of ONNX.
   */
  TLITE_TYPE_F8E5M2_UZ = 20,
  /*
   A power of two in 8 bits, `float8e8m0` of ONNX.
   */
  TLITE_TYPE_F8E8M0 = 21,
  /*
   4-bit float, `float4e2m1` of ONNX.
   */
  TLITE_TYPE_F4E2M1 = 22,
} tlite_type;

/*
 A loaded model that answers many requests at the same time (continuous batching).
 */
typedef struct tlite_batcher tlite_batcher;

/*
 A loaded model: weights, compiled kernels, tokenizer and chat template. Sessions on any threads
 may share it.
 */
typedef struct tlite_model tlite_model;

/*
 A request to a batcher.
 */
typedef struct tlite_request tlite_request;

/*
 A loaded model of any kind. Only one call at a time may use it, except `tlite_runner_cancel`.
 */
typedef struct tlite_runner tlite_runner;

/*
 A token sequence with its own KV cache. Only one call at a time may use it, except
 `tlite_cancel` and `tlite_cancel_clear`, which may be called at any time.
 */
typedef struct tlite_session tlite_session;

/*
 Receives a line of the log, in UTF-8 and valid only during the call. It may be called from any
 thread and from several at once. It must return normally and must not call any function of this
 library.
 */
typedef void (*tlite_log_callback)(tlite_log_level level, const char *text, void *user);

/*
 Receives progress: `done` of `total`, where `what` names the unit: "kernels" that are ready, or
 "bytes" that are converted, counted as 32-bit floats. `what` is valid only during the call.
 Returns 0 to continue. Any other value ends the work as soon as possible, and the call that
 reports progress then fails with `TLITE_ERROR_INTERRUPTED`. It must return normally (no
 `longjmp`, no exception).
 */
typedef int (*tlite_progress_callback)(const char *what, uint64_t done, uint64_t total, void *user);

/*
 Where and how to load a model. Initialize it with `tlite_load_defaults`. Strings are UTF-8 and
 are read only during the call.
 */
typedef struct {
  /*
   Size of this struct in bytes, as the program was compiled with it.
   */
  size_t size;
  /*
   "auto", "opencl", "wgpu", "cpu" or "reference". NULL means "auto": a GPU if there is one,
   else "cpu".
   */
  const char *backend;
  /*
   Device name, or text that the name contains. NULL selects the best device.
   */
  const char *device;
  /*
   Context length in tokens. 0 selects the model's own length, at most 4096.
   */
  size_t context;
  /*
   KV cache type on a device: "f16" or "q8". NULL means "f16".
   */
  const char *kv;
  /*
   Decode lengths are padded to multiples of this, 32 to 256. 0 means 64.
   */
  size_t padding;
  /*
   GPU scheduling priority: "low", "normal" or "high". NULL means "low" on GPUs that share
   memory with the host, otherwise the driver's default.
   */
  const char *priority;
  /*
   Folder that caches compiled kernels, at most 4 GB. A folder that another user owns or can
   write to is not used, because drivers execute its contents. NULL disables the cache.
   */
  const char *kernel_cache;
  /*
   Activation precision of matmuls with 4-bit and 8-bit E0M weights on a device: "auto",
   "float", "int16" or "int8". NULL means "auto", which keeps the answers of the float model:
   "int16" on "cpu", else "float". "int8" is faster on some CPUs, and its answers can differ.
   */
  const char *act;
  /*
   How matmuls read activations on an OpenCL device: "1d" or "2d" (through images), "off" (from
   buffers) or "auto". NULL means "auto": through images on Adreno.
   */
  const char *images;
  /*
   How repeated commands, such as decode steps, are submitted to an OpenCL device: "auto",
   "command-buffer", "qcom" or "off". NULL means "auto": recorded on GPUs whose driver supports
   it.
   */
  const char *recording;
  /*
   Longest time in milliseconds that queued work may occupy an OpenCL device before other work
   gets a turn, at most 10000. 0 means no limit. -1 means 8 on GPUs that share memory with the
   host, otherwise no limit.
   */
  ptrdiff_t slice_ms;
  /*
   What the model may consume, as a list such as "memory=4G,time=30s": memory (host memory of
   tensors), time (of loading, and of each token or part of a prompt), iterations (of all loops
   in a run), tokenizer (bytes of tokenizer.json), template-steps and template-output (of the
   chat template), files (map, or read to copy the files into memory). NULL or a name left out
   means the default: half of the machine's memory, no time limit, bounds that no usual model
   reaches, and mapped files.
   */
  const char *limits;
  /*
   Threads of the backend "cpu", at most the cores that the process may use. 0 means all.
   */
  size_t threads;
  /*
   Receives progress of loading: kernels that are ready. It is called on the calling thread.
   NULL for none.
   */
  tlite_progress_callback on_progress;
  /*
   Passed to `on_progress`.
   */
  void *progress_user;
} tlite_load_options;

/*
 Counts and times of an answer. Times cover the model and the sampler, not the callbacks.
 */
typedef struct {
  /*
   Size of this struct in bytes, as the program was compiled with it.
   */
  size_t size;
  /*
   Prompt tokens that were computed.
   */
  size_t prompt_tokens;
  /*
   Prompt tokens that the KV cache held.
   */
  size_t reused_tokens;
  /*
   Tokens of the answer, without an end token.
   */
  size_t tokens;
  /*
   Tokens after the first one, including an end token.
   */
  size_t decode_tokens;
  /*
   Tokens that were dropped because the context was full.
   */
  size_t forgotten_tokens;
  /*
   Seconds from the start of the prompt to the first token.
   */
  double first_token_s;
  /*
   Seconds for `decode_tokens`.
   */
  double decode_s;
} tlite_metrics;

/*
 A token at a position, and its natural log-probability before the sampler changes it.
 */
typedef struct {
  /*
   Token ID.
   */
  uint32_t token;
  /*
   The log-probability; NaN unless the option `log_probs` is set.
   */
  float log_prob;
  /*
   The text in UTF-8 that it adds, or its name if it is special. Bytes that are not whole
   characters become U+FFFD.
   */
  const char *text;
  /*
   Length of `text` in bytes, without the 0 byte that follows it.
   */
  size_t length;
} tlite_log_prob;

/*
 Receives a token that was chosen, and `top_count` of the most likely tokens at its position,
 largest first. It is called before the callback for the token's text, with the same `user`, and
 under the same rules. Pointers are valid only during the call.
 */
typedef int (*tlite_token_callback)(const tlite_log_prob *chosen,
                                    const tlite_log_prob *top,
                                    size_t top_count,
                                    void *user);

/*
 A change of a token's logit.
 */
typedef struct {
  /*
   Token ID.
   */
  uint32_t token;
  /*
   Added to the logit. Minus infinity forbids the token.
   */
  float bias;
} tlite_logit_bias;

/*
 How tokens are chosen and when an answer ends. Initialize it with `tlite_generate_defaults`.
 */
typedef struct {
  /*
   Size of this struct in bytes, as the program was compiled with it.
   */
  size_t size;
  /*
   Maximum number of tokens to generate. 0 generates none.
   */
  size_t max_tokens;
  /*
   Sample only from this many most likely tokens. 0 disables the filter.
   */
  size_t top_k;
  /*
   Seed of the random generator. Equal seeds give equal texts on the same device with the same
   options, if the same part of the prompt comes from the KV cache. A reused part can round
   differently from one that is run again, and then other tokens may be chosen.
   */
  uint64_t seed;
  /*
   0 always picks the most likely token. Higher values make the choice more random.
   */
  float temperature;
  /*
   Sample from the fewest tokens whose probabilities reach this sum. 1 disables the filter.
   */
  float top_p;
  /*
   Sample only from tokens at least this many times as likely as the most likely one. 0
   disables the filter.
   */
  float min_p;
  /*
   Divide positive logits of recent tokens by this, and multiply negative ones by it. 1
   disables the penalty.
   */
  float repetition_penalty;
  /*
   If not 0, generation continues when the context is full. A conversation drops its oldest
   turns but keeps system messages. A text keeps the prompt and the last half of what followed
   it.
   */
  int context_shift;
  /*
   `stop_count` UTF-8 strings that end the answer and are not part of it. None may be empty.
   NULL if there are none.
   */
  const char *const *stop;
  /*
   Number of strings in `stop`.
   */
  size_t stop_count;
  /*
   A JSON object in UTF-8 with extra variables for the chat template, such as
   `{"tools": [...], "enable_thinking": false}`, or NULL.
   */
  const char *template_values;
  /*
   A grammar in UTF-8 that the answer must match: in Lark notation with the entry rule `start`,
   or in GBNF, the notation of llama.cpp, with the rule `root`. NULL for none.
   */
  const char *grammar;
  /*
   A JSON schema in UTF-8; the answer is JSON that matches it. NULL for none. An answer has a
   grammar or a schema, not both.
   */
  const char *json_schema;
  /*
   Receives tokens with their log-probabilities. NULL for none.
   */
  tlite_token_callback on_token;
  /*
   How many of the most likely tokens `on_token` receives for each position. -1 disables
   log-probabilities, which slow greedy decoding.
   */
  ptrdiff_t log_probs;
  /*
   Number of last tokens that `repetition_penalty`, `frequency_penalty` and `presence_penalty`
   apply to. 0 disables them.
   */
  size_t penalty_last_n;
  /*
   Subtracted from the logit of a token for each time that it occurs. 0 disables the penalty.
   */
  float frequency_penalty;
  /*
   Subtracted once from the logit of a token that occurs. 0 disables the penalty.
   */
  float presence_penalty;
  /*
   Locally typical sampling: sample from the tokens whose information is closest to the
   entropy, with at least this total probability. 1 disables the filter.
   */
  float typical_p;
  /*
   Strength of the penalty for tokens that would repeat a sequence (DRY). 0 disables it.
   */
  float dry_multiplier;
  /*
   `logit_bias_count` changes of logits. NULL if there are none.
   */
  const tlite_logit_bias *logit_bias;
  /*
   Number of elements in `logit_bias`.
   */
  size_t logit_bias_count;
  /*
   If not 0, values that `json_schema` does not bound may be of any length. Otherwise, numbers
   have at most 40 digits, strings 4096 characters, and arrays 256 items.
   */
  size_t json_unbounded;
} tlite_generate_options;

/*
 Receives a piece of text: `length` bytes of UTF-8, always whole characters, followed by a 0
 byte. The text itself may contain 0 bytes. `text` is valid only during the call. Returns 0 to
 continue, any other value to end the answer. It must return normally (no `longjmp`, no
 exception), and must not generate with, clear or free the session.
 */
typedef int (*tlite_callback)(const char *text, size_t length, void *user);

/*
 A message of a conversation.
 */
typedef struct {
  /*
   "system", "user", "assistant" or "tool".
   */
  const char *role;
  /*
   Text of the message, in UTF-8.
   */
  const char *content;
  /*
   A JSON object in UTF-8 with further fields for the chat template, such as `tool_calls`,
   `tool_call_id` or `name`, or NULL. A `content` field in it, which may be null, replaces the
   member above.
   */
  const char *extra;
} tlite_message;

/*
 Describes an input or output. Pointers belong to the runner.
 */
typedef struct {
  /*
   Name, in UTF-8.
   */
  const char *name;
  /*
   Element type.
   */
  tlite_type element_type;
  /*
   If not 0, a run may leave out this input, which has a default.
   */
  int optional;
  /*
   Number of axes; -1 if the model does not state it.
   */
  ptrdiff_t rank;
  /*
   `rank` sizes, outermost axis first; -1 for a size that depends on the inputs of a run.
   */
  const int64_t *shape;
  /*
   `rank` strings: sizes, or names and formulas such as "batch" and "2*height".
   */
  const char *const *axes;
} tlite_tensor_info;

/*
 A tensor that a run reads.
 */
typedef struct {
  /*
   Name of the input, in UTF-8.
   */
  const char *name;
  /*
   Elements in row-major order, little-endian. They are copied.
   */
  const void *data;
  /*
   Size of `data` in bytes. It must match the shape and the element type.
   */
  size_t bytes;
  /*
   `rank` sizes, outermost axis first. NULL for a scalar, whose rank is 0.
   */
  const size_t *shape;
  /*
   Number of axes.
   */
  size_t rank;
  /*
   A `tlite_type`: the type of the elements.
   */
  int element_type;
} tlite_tensor;

/*
 The version of the library, such as "0.1.0". The pointer stays valid.
 */
const char *tlite_version(void);

/*
 The error message of the last failed call on this thread, in UTF-8; empty if none has failed. It
 stays valid until the next failed call on this thread.
 */
const char *tlite_last_error(void);

/*
 The kind of failure that `tlite_last_error` describes, or `TLITE_ERROR_NONE`. Later versions may
 add codes.
 */
tlite_error tlite_last_error_code(void);

/*
 Sends log lines of all threads to `callback`, together with `user`: warnings, and notes of
 loading a model about what differs from the options. NULL stops this. When this function
 returns, the previous callback is no longer running. Returns 0, or -1 if a Rust program has set
 its own logger, which then receives the lines.

 `callback` may be called with `user` until it is replaced.
 */
int tlite_set_log(tlite_log_callback callback, void *user);

/*
 Writes the defaults to `options`; `size` is `sizeof *options`. The defaults select the best
 device and the model's own settings. Returns 0, or -1 if the library does not know this size.
 */
int tlite_load_defaults(tlite_load_options *options, size_t size);

/*
 Loads the model folder `path`: `model.onnx`, `tokenizer.json` and the configuration files that
 exporters write next to them. `options` may be NULL. Returns a model, to be freed with
 `tlite_model_free`, or NULL on failure.

 The files of the model stay mapped into memory until it and its sessions are freed, unless
 `limits` contains "files=read". Do not change or truncate them meanwhile: that changes the
 weights, or ends the process with a bus error (SIGBUS). To update a model, write a new file and
 rename it.
 */
tlite_model *tlite_model_load(const char *path, const tlite_load_options *options);

/*
 Frees a model. Its sessions keep what they need of it. NULL is allowed.

 `model` is NULL or from `tlite_model_load`, is not freed yet, and no other call is using it.
 */
void tlite_model_free(tlite_model *model);

/*
 Creates a session with an empty KV cache, to be freed with `tlite_session_free`, or returns NULL
 on failure. Sessions share weights and compiled kernels; each allocates its own cache.

 `model` is NULL or from `tlite_model_load` and is not freed yet.
 */
tlite_session *tlite_session_new(const tlite_model *model);

/*
 Frees a session. NULL is allowed.

 `session` is NULL or from `tlite_session_new`, is not freed yet, and no other call is using it.
 */
void tlite_session_free(tlite_session *session);

/*
 Empties the KV cache of a session. Returns 0, or -1 if another call is using the session.

 `session` is NULL or from `tlite_session_new` and is not freed yet.
 */
int tlite_session_clear(const tlite_session *session);

/*
 Stops the answer that the session is generating, within one step. If there is none, the next
 answer ends before its first token, so a call just before an answer starts is not lost. May be
 called from any thread.
 */
void tlite_cancel(const tlite_session *session);

/*
 Clears a `tlite_cancel` that arrived while no answer was being generated. The end of each answer
 clears it as well.
 */
void tlite_cancel_clear(const tlite_session *session);

/*
 Writes counts and times of the session's last answer to `metrics`; `size` is `sizeof *metrics`.
 They are 0 before the first answer. Returns 0, or -1 if the library does not know this size.
 */
int tlite_session_metrics(const tlite_session *session, tlite_metrics *metrics, size_t size);

/*
 Writes the defaults to `options`; `size` is `sizeof *options`. The defaults are at most 256
 tokens and greedy decoding. Returns 0, or -1 if the library does not know this size.
 */
int tlite_generate_defaults(tlite_generate_options *options, size_t size);

/*
 Continues the text `prompt`, in UTF-8, and passes each piece of new text to `callback` with
 `user`. `options` may be NULL. A prefix that the prompt shares with the session's KV cache is
 not computed again.

 The session must not be freed before the call ends.
 */
tlite_finish tlite_generate(const tlite_session *session,
                            const char *prompt,
                            const tlite_generate_options *options,
                            tlite_callback callback,
                            void *user);

/*
 Like `tlite_generate`, but answers a conversation of `count` messages, formatted with the
 model's chat template. Pass the whole conversation at each turn, including earlier answers:
 their tokens stay in the cache, and only new messages are computed. The session must not be
 freed before the call ends.
 */
tlite_finish tlite_chat(const tlite_session *session,
                        const tlite_message *messages,
                        size_t count,
                        const tlite_generate_options *options,
                        tlite_callback callback,
                        void *user);

/*
 Loads the model folder `path`, as `tlite_model_load` does, for up to `sequences` requests at the
 same time; 0 means 8. Requests are batched into the same forward passes, and common prefixes
 share KV cache pages. If the model cannot do this, requests run one after another, and the log
 says so. Returns a batcher, to be freed with `tlite_batcher_free`, or NULL on failure.
 `on_progress` must be NULL.
 */
tlite_batcher *tlite_batcher_load(const char *path, const tlite_load_options *options, size_t sequences);

/*
 Frees a batcher, which cancels its requests; each must still be freed. NULL is allowed.

 `batcher` is NULL or from `tlite_batcher_load`, is not freed yet, and no other call is using it.
 */
void tlite_batcher_free(tlite_batcher *batcher);

/*
 Queues a request to continue the text `prompt` and returns at once. Callbacks are called with
 `user` on a thread of the library, until the request has ended; they must not wait for it or
 free it. Options are those of `tlite_generate`. Returns a request, to be freed with
 `tlite_request_free`, or NULL on failure.
 */
tlite_request *tlite_batcher_generate(const tlite_batcher *batcher,
                                      const char *prompt,
                                      const tlite_generate_options *options,
                                      tlite_callback callback,
                                      void *user);

/*
 Like `tlite_batcher_generate`, but answers a conversation of `count` messages, as `tlite_chat`
 does. The option `context_shift` must be 0.
 */
tlite_request *tlite_batcher_chat(const tlite_batcher *batcher,
                                  const tlite_message *messages,
                                  size_t count,
                                  const tlite_generate_options *options,
                                  tlite_callback callback,
                                  void *user);

/*
 Waits for the end of a request and returns why it ended; after `TLITE_FINISH_ERROR` and
 `TLITE_FINISH_CALLBACK`, `tlite_last_error` says more. May be called again, from any thread.
 */
tlite_finish tlite_request_wait(const tlite_request *request);

/*
 Ends a request after the current step, or at once if it has not started. May be called from any
 thread.
 */
void tlite_request_cancel(const tlite_request *request);

/*
 Waits for the end of a request and writes its counts and times to `metrics`; `size` is `sizeof
 *metrics`. Returns 0, or -1 if the library does not know this size.
 */
int tlite_request_metrics(const tlite_request *request, tlite_metrics *metrics, size_t size);

/*
 Cancels a request, waits until no callback is running, and frees it. NULL is allowed.

 `request` is NULL or from one of the functions above, is not freed yet, and no other call is
 using it.
 */
void tlite_request_free(tlite_request *request);

/*
 Loads a model of any kind: an ONNX file, or a folder with `model.onnx`. `options` may be NULL;
 it says where to run, what may be consumed, and where kernels are cached. Its members `context`,
 `kv`, `padding`, `act` and `on_progress` are for language models and must have their defaults.
 Returns a runner, to be freed with `tlite_runner_free`, or NULL on failure.

 The files of the model stay mapped, as described at `tlite_model_load`.
 */
tlite_runner *tlite_runner_load(const char *path, const tlite_load_options *options);

/*
 Frees a runner. NULL is allowed.

 `runner` is NULL or from `tlite_runner_load`, is not freed yet, and no other call is using it.
 */
void tlite_runner_free(tlite_runner *runner);

/*
 The number of inputs, 0 for NULL. Those that a run needs come first. Initializers that the model
 also lists as inputs are optional.
 */
size_t tlite_runner_input_count(const tlite_runner *runner);

/*
 Describes the input `index`, counted from 0, in `info`, whose pointers are valid until the
 runner is freed. Returns 0, or -1 for an index out of range.
 */
int tlite_runner_input(const tlite_runner *runner, size_t index, tlite_tensor_info *info);

/*
 The number of outputs of the last run; before the first run, of outputs whose shapes the model
 states. 0 if another call is using the runner.
 */
size_t tlite_runner_output_count(const tlite_runner *runner);

/*
 Describes the output `index`, counted from 0, in `info`; after a run, with the sizes of that
 run. The pointers are valid until the next run or until the runner is freed. Returns 0, or -1 on
 failure.
 */
int tlite_runner_output(const tlite_runner *runner, size_t index, tlite_tensor_info *info);

/*
 Runs the model with `count` tensors in any order, one for each input that has no default, and
 keeps its outputs until the next run; read them with `tlite_runner_read`. Returns 0, or -1 on
 failure, after which there are no outputs.
 */
int tlite_runner_run(const tlite_runner *runner, const tlite_tensor *inputs, size_t count);

/*
 Stops the current run, or the next one if there is none. May be called from any thread.
 */
void tlite_runner_cancel(const tlite_runner *runner);

/*
 Copies the output `name` of the last run to `data`, in row-major order. `element_type` is its
 `tlite_type`, and `bytes` the size of `data`; both must be those of the output. Returns 0, or -1
 on failure.
 */
int tlite_runner_read(const tlite_runner *runner, const char *name, int element_type, void *data, size_t bytes);

/*
 Converts the GGUF file `source`, or the folder `source` of a Hugging Face checkpoint, to the
 model folder `output`, which must be empty or not exist yet. Quantized weights keep their bits.
 `on_progress` may be NULL; it is called with `user`. Returns 0, or -1 on failure, after which
 nothing is left.
 */
int tlite_convert(const char *source, const char *output, tlite_progress_callback on_progress, void *user);

/*
 Passes a JSON array to `callback`, with `user`: the kernel variants that models loaded with the
 folder `kernel_cache` do not use because they failed on a device. Each element has `backend`,
 `device`, `driver` and `kernels`. Each kernel has `variant`, `cause` ("wrong-results",
 "does-not-build" or "launch-refused"), `why`, and `since`, the time in seconds since 1970. All
 but wrong results are tried again after 7 days. Returns the number of kernels, or -1 on failure.

 `callback` is called once, and its result is ignored.
 */
int tlite_quarantine_list(const char *kernel_cache, tlite_callback callback, void *user);

/*
 Ends the quarantine of all kernel variants in the folder `kernel_cache`: models loaded later try
 them again. Returns their number, or -1 on failure.
 */
int tlite_quarantine_clear(const char *kernel_cache);

#ifdef __cplusplus
}
#endif

#endif
