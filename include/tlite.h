/* The C interface of Transformer-Lite. Made from src/capi.rs; change it there.
 *
 * Functions may be called from any thread. Strings that go in are UTF-8, end with a 0, belong to the caller and are read during the
 * call only. Pointers are NULL or point to what is said here. NULL where an object or a text is needed is an error and does no harm.
 * What fails says so by what it returns; tlite_last_error says why, tlite_last_error_code of what kind it is. Models and sessions
 * belong to the caller, who frees each once, with the function of its kind. */

#ifndef TLITE_H
#define TLITE_H


#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 What kind of failure an error is.
 */
typedef enum {
  /*
   No call of this thread has failed.
   */
  TLITE_ERROR_NONE = 0,
  /*
   Anything without a code of its own.
   */
  TLITE_ERROR_OTHER = 1,
  /*
   An argument or a member of options has a value that cannot be used.
   */
  TLITE_ERROR_USAGE = 2,
  /*
   A prompt or conversation has more tokens than the context holds.
   */
  TLITE_ERROR_CONTEXT_EXCEEDED = 3,
  /*
   A conversation for a model that has no chat template.
   */
  TLITE_ERROR_NO_TEMPLATE = 4,
  /*
   The chat template refuses the messages.
   */
  TLITE_ERROR_TEMPLATE_REFUSED = 5,
  /*
   A token that the model does not have.
   */
  TLITE_ERROR_TOKEN_OUT_OF_RANGE = 6,
  /*
   The file of a prompt cache is damaged, or is none.
   */
  TLITE_ERROR_PROMPT_CACHE_DAMAGED = 7,
  /*
   A prompt cache is that of another model, or of another storage of the cache.
   */
  TLITE_ERROR_PROMPT_CACHE_MISMATCH = 8,
  /*
   No driver, or no device of that name.
   */
  TLITE_ERROR_NO_DEVICE = 9,
  /*
   A device or the host has too little memory.
   */
  TLITE_ERROR_OUT_OF_MEMORY = 10,
  /*
   The device is gone; models and sessions on it are of no use any more.
   */
  TLITE_ERROR_DEVICE_LOST = 11,
  /*
   The operating system refused an operation on a file.
   */
  TLITE_ERROR_IO = 12,
  /*
   A file's content is not what its format demands.
   */
  TLITE_ERROR_INVALID_FILE = 13,
  /*
   The work was interrupted.
   */
  TLITE_ERROR_INTERRUPTED = 14,
  /*
   A mistake in the library.
   */
  TLITE_ERROR_INTERNAL = 15,
} tlite_error;

/*
 How much a line of the log matters.
 */
typedef enum {
  /*
   Something failed that no call returns as its own failure.
   */
  TLITE_LOG_LEVEL_ERROR = 1,
  /*
   Something is done otherwise than asked for or than it could be: notes of loading, refusals of drivers.
   */
  TLITE_LOG_LEVEL_WARNING = 2,
  /*
   How much memory is taken, and the like.
   */
  TLITE_LOG_LEVEL_INFO = 3,
} tlite_log_level;

/*
 Why an answer ended.
 */
typedef enum {
  /*
   It failed; `tlite_last_error` says why. Text that came before is valid.
   */
  TLITE_FINISH_ERROR = -1,
  /*
   The model ended it.
   */
  TLITE_FINISH_END_OF_TEXT = 0,
  /*
   A stop string came up.
   */
  TLITE_FINISH_STOP_STRING = 1,
  /*
   The largest number of tokens was generated.
   */
  TLITE_FINISH_MAX_TOKENS = 2,
  /*
   The cache has no room for another token.
   */
  TLITE_FINISH_CONTEXT_FULL = 3,
  /*
   `tlite_cancel` was called.
   */
  TLITE_FINISH_CANCELLED = 4,
  /*
   The callback asked for it.
   */
  TLITE_FINISH_CALLBACK = 5,
} tlite_finish;

/*
 A loaded model: weights, compiled kernels, tokenizer and chat template. Any number of sessions may share it, in any threads.
 */
typedef struct tlite_model tlite_model;

/*
 A sequence of tokens in a cache of its own. One call at a time generates with it; only `tlite_cancel` and `tlite_cancel_clear` may be called
 meanwhile.
 */
typedef struct tlite_session tlite_session;

/*
 Takes a line of the log, in UTF-8 and valid during the call only. It is called from any thread, from several at a time, must return
 normally, and may call no function of this library.
 */
typedef void (*tlite_log_callback)(tlite_log_level level, const char *text, void *user);

/*
 Where and how a model is loaded. Begin with what `tlite_load_defaults` writes. Strings are UTF-8 and read during the call only.
 */
typedef struct {
  /*
   The size of this struct, in bytes, as the program was compiled with it.
   */
  size_t size;
  /*
   "auto", "opencl", "wgpu" or "host"; NULL is "auto", the best device there is.
   */
  const char *backend;
  /*
   The device of this name, else the one whose name or driver contains this text; NULL is the best one.
   */
  const char *device;
  /*
   Tokens that the cache of a session holds; 0 is what the model was made for, at most 4096.
   */
  size_t context;
  /*
   Storage of the cache on a device, "f16" or "q8"; NULL is "f16".
   */
  const char *kv;
  /*
   Lengths of decoding are padded to multiples of this, 32 to 256; 0 is 64.
   */
  size_t padding;
  /*
   Whose work the device does first, "low", "normal" or "high"; NULL is low on GPUs that share the host's memory, else the driver's.
   */
  const char *priority;
  /*
   Folder where compiled kernels are kept for the next start, 4 GB of them at most. One of somebody else, or that others can write, is not
   used, as drivers run what is in it. NULL keeps none.
   */
  const char *kernel_cache;
  /*
   Activation precision of matmuls with E0M weights of 4 and 8 bits on a device: "auto", "float" or "int8".
   NULL is "auto", which keeps the answers of the float model ("float" on every backend). "int8" is faster on
   some CPUs, and its answers can differ.
   */
  const char *act;
  /*
   How products of matrices read activations on an OpenCL device, "auto", "1d" or "2d" through images of one or two axes, or "off"; NULL is
   "auto", through images on Adreno.
   */
  const char *images;
  /*
   How commands that repeat reach an OpenCL device, "auto", "persistent", "command-buffer", "qcom" or "off"; NULL is "auto", recorded on
   GPUs whose driver can, and in persistent kernels on CPUs.
   */
  const char *recording;
  /*
   Milliseconds that queued work may hold an OpenCL device before other work gets its turn, 10000 at most; 0 is no limit, and -1 is 8 on GPUs
   that share the host's memory, else 0.
   */
  ptrdiff_t slice_ms;
} tlite_load_options;

/*
 How tokens are chosen, and when an answer ends. Begin with what `tlite_generate_defaults` writes.
 */
typedef struct {
  /*
   The size of this struct, in bytes, as the program was compiled with it.
   */
  size_t size;
  /*
   Largest number of tokens to generate; 0 generates none.
   */
  size_t max_tokens;
  /*
   Choose among so many of the most likely tokens; 0 is off.
   */
  size_t top_k;
  /*
   Start of the random sequence; equal seeds give equal texts.
   */
  uint64_t seed;
  /*
   0 takes the most likely token always; higher values take others more often.
   */
  float temperature;
  /*
   Choose among the fewest tokens whose probabilities sum to this; 1 is off.
   */
  float top_p;
  /*
   Choose among the tokens at least this many times as likely as the most likely one; 0 is off.
   */
  float min_p;
  /*
   Divide logits of tokens that occurred lately by this; 1 is off.
   */
  float repetition_penalty;
  /*
   Not 0: a full context slides. A conversation forgets its oldest turns, but for the system's messages; a text goes on with the prompt
   and the latter half of what followed it.
   */
  int context_shift;
  /*
   `stop_count` texts in UTF-8 that end the answer and are not part of it; none may be empty. NULL where there are none.
   */
  const char *const *stop;
  /*
   How many texts `stop` has.
   */
  size_t stop_count;
  /*
   A JSON object in UTF-8 with what the chat template is given beside the messages, such as `{"tools": [...], "enable_thinking": false}`; or
   NULL.
   */
  const char *template_values;
} tlite_generate_options;

/*
 Takes a piece of text: `length` bytes of UTF-8 in whole characters, and a 0 behind them; a text may hold zero bytes, too. `text` is valid
 during the call only. Returns 0 to go on and anything else to end the answer. It must return normally: no `longjmp`, no exception. It may
 not generate with, clear or free the session.
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
   What was said, in UTF-8.
   */
  const char *content;
  /*
   A JSON object in UTF-8 with what the chat template knows beside these, such as `tool_calls`, `tool_call_id` or `name`; or NULL. A `content`
   in it, which may be null, takes the place of that above.
   */
  const char *extra;
} tlite_message;

/*
 The version of the library, as in "0.1.0". It is valid for ever.
 */
const char *tlite_version(void);

/*
 What went wrong in the last call of this thread that failed, in UTF-8; empty before any did. It is valid until the next call of this
 thread that fails.
 */
const char *tlite_last_error(void);

/*
 What kind of failure `tlite_last_error` tells of; `TLITE_ERROR_NONE` before any. Later versions may have more codes.
 */
tlite_error tlite_last_error_code(void);

/*
 Hands what the library says beside its results to `callback` with `user`, from now on and for all threads: notes of loading a model, which
 tell what is done otherwise than the options ask for, and warnings. NULL ends that. When this returns, no call of the callback before runs any
 more. Returns 0, or -1 where the program has a log of its own in Rust, which gets the lines.

 `callback` may be called with `user` until it is replaced.
 */
int tlite_set_log(tlite_log_callback callback,
                  void *user);

/*
 Writes the defaults to `options`, whose `size` is `sizeof *options`: the best device, and what the model was made for. Returns 0, or -1 for
 a size that this library does not know.
 */
int tlite_load_defaults(tlite_load_options *options,
                        size_t size);

/*
 Loads the model in the folder `path`: `model.onnx`, `tokenizer.json` and the configuration files that exporters write beside them.
 `options` may be NULL. Returns a model to be freed by `tlite_model_free`, or NULL.
 */
tlite_model *tlite_model_load(const char *path,
                              const tlite_load_options *options);

/*
 Frees a model. Its sessions keep what they need of it. NULL is allowed.

 `model` is NULL or from `tlite_model_load`, not freed before, and in use by no other call.
 */
void tlite_model_free(tlite_model *model);

/*
 A session of `model` with an empty cache, to be freed by `tlite_session_free`; or NULL. Sessions share weights and compiled kernels; each
 takes memory for its cache.

 `model` is NULL or from `tlite_model_load` and not freed.
 */
tlite_session *tlite_session_new(const tlite_model *model);

/*
 Frees a session. NULL is allowed.

 `session` is NULL or from `tlite_session_new`, not freed before, and in use by no other call.
 */
void tlite_session_free(tlite_session *session);

/*
 Empties the cache of a session. Returns 0, or -1 where it is in use.

 `session` is NULL or from `tlite_session_new` and not freed.
 */
int tlite_session_clear(const tlite_session *session);

/*
 Ends the answer that the session generates at this moment, within one step; without one, the next answer ends before its first token, so
 that a call that comes just before an answer starts is not lost. For any thread.
 */
void tlite_cancel(const tlite_session *session);

/*
 Takes back a `tlite_cancel` that came when no answer was generated. Each answer does so at its end.
 */
void tlite_cancel_clear(const tlite_session *session);

/*
 Writes the defaults to `options`, whose `size` is `sizeof *options`: 256 tokens, of which each is the most likely one. Returns 0, or -1 for a
 size that this library does not know.
 */
int tlite_generate_defaults(tlite_generate_options *options,
                            size_t size);

/*
 Goes on with the text `prompt`, in UTF-8, and hands what comes to `callback` with `user`. `options` may be NULL. What the prompt shares with
 the session's cache from its start on is not computed again.

 The session must not be freed before the call ends.
 */
tlite_finish tlite_generate(const tlite_session *session,
                            const char *prompt,
                            const tlite_generate_options *options,
                            tlite_callback callback,
                            void *user);

/*
 As `tlite_generate`, with the answer to a conversation of `count` messages, in the form that the model's chat template gives it. Turn by turn
 the caller gives all messages, those that were answered too: what the session said itself keeps its tokens, and only what is new is
 computed. The session must not be freed before the call ends.
 */
tlite_finish tlite_chat(const tlite_session *session,
                        const tlite_message *messages,
                        size_t count,
                        const tlite_generate_options *options,
                        tlite_callback callback,
                        void *user);

#ifdef __cplusplus
}
#endif

#endif
