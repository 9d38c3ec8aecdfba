package org.transformerlite

import java.nio.ByteBuffer
import java.util.concurrent.locks.ReentrantLock
import kotlin.concurrent.withLock

/** The functions of tlite_jni.c. An app for Android calls [prepareAndroid] first. */
internal object Native {
    init {
        System.loadLibrary("tlite_jni")
    }

    interface AnswerListener {
        fun piece(text: ByteArray): Boolean
        fun token(ids: IntArray, logProbs: FloatArray, texts: Array<ByteArray>): Boolean
    }

    interface ProgressListener {
        fun report(what: ByteArray, done: Long, total: Long): Boolean
    }

    interface LogListener {
        fun line(level: Int, text: ByteArray)
    }

    @JvmStatic external fun setLog(listener: LogListener?): Boolean
    @JvmStatic external fun lastError(): ByteArray
    @JvmStatic external fun lastErrorCode(): Int
    @JvmStatic external fun modelLoad(
        path: ByteArray,
        texts: Array<ByteArray?>,
        numbers: LongArray,
        progress: ProgressListener?
    ): Long
    @JvmStatic external fun modelFree(model: Long)
    @JvmStatic external fun sessionNew(model: Long): Long
    @JvmStatic external fun sessionFree(session: Long)
    @JvmStatic external fun sessionClear(session: Long): Boolean
    @JvmStatic external fun sessionMetrics(session: Long): DoubleArray?
    @JvmStatic external fun cancel(session: Long)
    @JvmStatic external fun cancelClear(session: Long)
    @JvmStatic external fun generate(
        session: Long,
        chat: Boolean,
        texts: Array<ByteArray>,
        optionTexts: Array<ByteArray?>,
        numbers: LongArray,
        floats: FloatArray,
        stops: Array<ByteArray>,
        listener: AnswerListener
    ): Int
    @JvmStatic external fun batcherLoad(path: ByteArray, texts: Array<ByteArray?>, numbers: LongArray, sequences: Long): Long
    @JvmStatic external fun batcherFree(batcher: Long)
    @JvmStatic external fun submit(
        batcher: Long,
        texts: Array<ByteArray>,
        optionTexts: Array<ByteArray?>,
        numbers: LongArray,
        floats: FloatArray,
        stops: Array<ByteArray>,
        listener: AnswerListener
    ): Long
    @JvmStatic external fun requestWait(request: Long): Int
    @JvmStatic external fun requestCancel(request: Long)
    @JvmStatic external fun requestMetrics(request: Long): DoubleArray?
    @JvmStatic external fun requestFree(request: Long)
    @JvmStatic external fun convert(source: ByteArray, output: ByteArray, progress: ProgressListener?): Boolean
    @JvmStatic external fun runnerLoad(path: ByteArray, texts: Array<ByteArray?>, numbers: LongArray): Long
    @JvmStatic external fun runnerFree(runner: Long)
    @JvmStatic external fun runnerCancel(runner: Long)
    @JvmStatic external fun runnerCount(runner: Long, outputs: Boolean): Long
    @JvmStatic external fun runnerInfo(runner: Long, output: Boolean, index: Long, numbers: LongArray): Array<ByteArray>?
    @JvmStatic external fun runnerRun(
        runner: Long,
        names: Array<ByteArray>,
        types: IntArray,
        shapes: Array<LongArray>,
        data: Array<ByteBuffer>,
        bytes: LongArray
    ): Boolean
    @JvmStatic external fun runnerRead(runner: Long, name: ByteArray, type: Int, buffer: ByteBuffer, bytes: Long): Boolean
}

/** An object of the library. It is freed once, and not while a call uses it. */
internal class Handle(private val address: Long, private val free: (Long) -> Unit) {
    // Not held during a call, so that a callback, for which another call waits, can call, too.
    private val lock = ReentrantLock()
    private val changed = lock.newCondition()
    private var calls = 0
    private var closing = false
    private var freed = false

    init {
        if (address == 0L) throw lastError()
    }

    fun <T> use(call: (Long) -> T): T {
        check(begin()) { "used after close" }
        try {
            return call(address)
        } finally {
            end()
        }
    }

    /** Like [use], but does nothing after [close] was called. */
    fun cancel(call: (Long) -> Unit) {
        if (begin()) try {
            call(address)
        } finally {
            end()
        }
    }

    private fun begin(): Boolean = lock.withLock {
        if (!closing) calls++
        !closing
    }

    private fun end() = lock.withLock {
        calls--
        changed.signalAll()
    }

    /** Frees the object after all calls have ended. [before] may make them end sooner. */
    fun close(before: (Long) -> Unit = {}) {
        val isFirst = lock.withLock { !closing.also { closing = true } }
        if (isFirst) {
            before(address)
            lock.withLock { while (calls > 0) changed.awaitUninterruptibly() }
            free(address)
        }
        lock.withLock {
            freed = freed || isFirst
            changed.signalAll()
            while (!freed) changed.awaitUninterruptibly()
        }
    }
}

internal fun bytes(text: String): ByteArray {
    require('\u0000' !in text) { "text must not contain zero characters" }
    return text.toByteArray(Charsets.UTF_8)
}

internal fun text(bytes: ByteArray) = String(bytes, Charsets.UTF_8)

internal fun lastError() = TliteException(Native.lastErrorCode(), text(Native.lastError()))

/** Keeps what a callback throws, since the library stops at it and a thread of its own has no caller. */
internal class Guard {
    @Volatile private var thrown: Throwable? = null

    /** The thread that runs a callback. */
    @Volatile var thread: Thread? = null
        private set

    fun call(callback: () -> Boolean): Boolean {
        thread = Thread.currentThread()
        try {
            return callback()
        } catch (e: Throwable) {
            thrown = e
            return false
        } finally {
            thread = null
        }
    }

    fun rethrow() = thrown?.let { throw it }
}

internal fun progressListener(guard: Guard, progress: ((Long, Long) -> Boolean)?): Native.ProgressListener? {
    if (progress == null) return null
    return object : Native.ProgressListener {
        override fun report(what: ByteArray, done: Long, total: Long) = guard.call { progress(done, total) }
    }
}
