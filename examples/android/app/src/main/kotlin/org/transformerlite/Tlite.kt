package org.transformerlite

import android.system.Os
import java.util.concurrent.locks.ReentrantReadWriteLock
import kotlin.concurrent.read
import kotlin.concurrent.write

/** What the library refuses, in its words. */
class TliteException(message: String) : Exception(message)

/** Why an answer ended. */
enum class Finish { END_OF_TEXT, STOP_STRING, MAX_TOKENS, CONTEXT_FULL, CANCELLED, CALLBACK }

/** How much a line of the log matters. */
enum class LogLevel { ERROR, WARNING, INFO }

/** What the library says beside its results. */
object TliteLog {
    /**
     * Hands every line to [listener]: what is done otherwise than asked for, refusals of drivers, memory. It is called on any thread, on several
     * at once, and uses nothing of the library. `null` ends that.
     */
    @Synchronized
    fun listen(listener: ((LogLevel, String) -> Unit)?) {
        val native = listener?.let {
            object : Native.LogListener {
                override fun line(level: Int, text: ByteArray) =
                    it(LogLevel.values()[level - 1], String(text, Charsets.UTF_8))
            }
        }
        if (!Native.setLog(native)) throw lastError()
    }
}

/** Who said what: "system", "user", "assistant" or "tool". */
data class Message(val role: String, val content: String)

/**
 * A model in a folder that `tlite convert` and `tlite quantize` made. Loading takes seconds: not on the main thread.
 *
 * [backend] is "auto", "opencl" or "wgpu"; [context] is how many tokens a session holds, 0 what the model was made for, at most 4096;
 * [cache] is a folder of the app's own where compiled kernels are kept for the next start, null keeps none.
 */
class Model(path: String, backend: String = "auto", context: Int = 0, cache: String? = null) : AutoCloseable {
    private val handle =
        Handle(Native.modelLoad(bytes(path), bytes(backend), context.toLong(), cache?.let(::bytes)), Native::modelFree)

    /** A conversation with a cache of its own. Sessions share the weights, and may outlive the model. */
    fun session() = Session(handle.use { Native.sessionNew(it) })

    override fun close() = handle.close()
}

/** See [Model.session]. One answer at a time. */
class Session internal constructor(address: Long) : AutoCloseable {
    private val handle = Handle(address, Native::sessionFree)

    /**
     * Answers the conversation, and hands the text to [piece] as it comes, on the calling thread; `false` ends the answer. What an earlier
     * answer of this session read or said is not read again. With [contextShift] a full context forgets the oldest turns. Not on the main
     * thread.
     */
    fun chat(
        messages: List<Message>,
        maxTokens: Int = 256,
        temperature: Float = 0f,
        contextShift: Boolean = false,
        piece: (String) -> Boolean
    ): Finish {
        val texts = messages.flatMap { listOf(bytes(it.role), bytes(it.content)) }.toTypedArray()
        val listener = object : Native.Listener {
            override fun piece(text: ByteArray) = piece(String(text, Charsets.UTF_8))
        }
        val finish = handle.use { Native.chat(it, texts, maxTokens.toLong(), temperature, contextShift, listener) }
        return Finish.values().getOrElse(finish) { throw lastError() }
    }

    /** Ends the answer that is being generated, within one token; without one, the next ends before it begins. For any thread. */
    fun cancel() = handle.use { Native.cancel(it) }

    /** Takes back a [cancel] that came when no answer was generated: for the start of a question. For any thread. */
    fun clearCancel() = handle.use { Native.cancelClear(it) }

    /** Ends the answer that is being generated, too. Not for the `piece` of [chat]. */
    override fun close() = handle.close(Native::cancel)
}

/** An object of the library, which is freed once, and not while a call uses it. */
private class Handle(private var address: Long, private val free: (Long) -> Unit) {
    private val lock = ReentrantReadWriteLock()

    init {
        if (address == 0L) throw lastError()
    }

    inline fun <T> use(call: (Long) -> T): T = lock.read {
        check(address != 0L) { "used after close" }
        call(address)
    }

    /** Frees the object when all calls have ended, which [before] may hasten. */
    fun close(before: (Long) -> Unit = {}) {
        lock.read { if (address != 0L) before(address) }
        lock.write {
            if (address != 0L) free(address)
            address = 0
        }
    }
}

private fun bytes(text: String): ByteArray {
    require('\u0000' !in text) { "texts for the library hold no zero characters" }
    return text.toByteArray(Charsets.UTF_8)
}

private fun lastError() = TliteException(String(Native.lastError(), Charsets.UTF_8))

/** The functions of tlite_jni.c. */
internal object Native {
    init {
        // Read when OpenCL is first used; a process with threads has no other way to say it than this one, which Android gives. The names are
        // those of the manifest, of which the first that can be opened is taken.
        Os.setenv("OPENCL_DYLIB_PATH", "libOpenCL.so;libGLES_mali.so;libmali.so;libPVROCL.so", false)
        System.loadLibrary("tlite_jni")
    }

    interface Listener {
        fun piece(text: ByteArray): Boolean
    }

    interface LogListener {
        fun line(level: Int, text: ByteArray)
    }

    @JvmStatic external fun setLog(listener: LogListener?): Boolean
    @JvmStatic external fun lastError(): ByteArray
    @JvmStatic external fun modelLoad(path: ByteArray, backend: ByteArray, context: Long, cache: ByteArray?): Long
    @JvmStatic external fun modelFree(model: Long)
    @JvmStatic external fun sessionNew(model: Long): Long
    @JvmStatic external fun sessionFree(session: Long)
    @JvmStatic external fun cancel(session: Long)
    @JvmStatic external fun cancelClear(session: Long)
    @JvmStatic external fun chat(
        session: Long,
        texts: Array<ByteArray>,
        maxTokens: Long,
        temperature: Float,
        contextShift: Boolean,
        listener: Listener
    ): Int
}
