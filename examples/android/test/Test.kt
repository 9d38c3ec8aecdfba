package org.transformerlite

import java.io.File
import java.util.Collections
import java.util.concurrent.CompletableFuture
import java.util.concurrent.CountDownLatch
import java.util.concurrent.TimeUnit

/** Runs the classes on a Java VM: Test MOBILENET CHAT GGUF WORK. Throws if something differs. */
fun main(args: Array<String>) {
    val (pictures, chat, gguf, work) = args
    val options = LoadOptions(backend = "cpu", context = 512, cache = "$work/kernels")
    runner(pictures)
    conversion(gguf, "$work/converted")
    val lines = Collections.synchronizedList(mutableListOf<String>())
    TliteLog.listen { _, line -> lines += line }
    val kernels = mutableListOf<Pair<Long, Long>>()
    val session = Model(chat, options) { done, all -> kernels += Pair(done, all); true }.use { it.session() }
    TliteLog.listen(null)
    check(lines.any { "memory" in it }) { lines }
    // The CPU backend compiles no kernels; `conversion` tests that progress arrives.
    check(kernels.isEmpty()) { kernels }
    session.use { answers(it) }
    batches(chat, options)
    closed(chat, options)
    println("Kotlin: all as expected")
}

private fun failure(call: () -> Unit): TliteException = try {
    call()
    throw IllegalStateException("an error was expected")
} catch (e: TliteException) {
    e
}

/** MobileNetV2 of a picture of numbers; the expected logits are those of ONNX Runtime 1.32. */
private fun runner(path: String) = Runner(path, LoadOptions(backend = "cpu")).use { runner ->
    val info = runner.inputs.single { !it.optional }
    check(info == TensorInfo("data", Type.F32, listOf("1", "3", "224", "224"), false)) { info }
    val pixels = FloatArray(3 * 224 * 224) { (it.toLong() * 7919 % 256).toFloat() / 255 }
    val shape = listOf(1, 3, 224, 224)
    val logits = runner.run(Tensor.of("data", shape, pixels)).single()
    check(logits.shape == listOf(1, 1000)) { logits.shape }
    val values = logits.floats()
    val best = values.indices.sortedByDescending { values[it] }.take(3)
    check(best == listOf(556, 539, 753)) { best }
    check(Math.abs(values[556] - 10.002625f) < 0.01f) { values[556] }
    val wrong = failure { runner.run(Tensor.of("data", shape, FloatArray(7))) }
    check(wrong.code == 17 && "28" in wrong.message.orEmpty()) { wrong }
    check("pixels" in failure { runner.run(Tensor.of("pixels", shape, pixels)) }.message.orEmpty())
    check("no such" in failure { Runner("no such file") }.message.orEmpty())
}

private fun conversion(gguf: String, output: String) {
    var last = Pair(0L, 1L)
    val stopped = failure { convert(gguf, output) { _, _ -> false } }
    check(stopped.code == 14 && !File(output).exists()) { stopped }
    val thrown = try {
        convert(gguf, output) { _, _ -> throw IllegalArgumentException("mine") }
        null
    } catch (e: IllegalArgumentException) {
        e.message
    }
    check(thrown == "mine" && !File(output).exists()) { "$thrown" }
    convert(gguf, output) { done, total -> last = Pair(done, total); true }
    check(last.first == last.second && last.second > 1) { last }
    Model(output, LoadOptions(backend = "cpu", context = 64)).use { model ->
        model.session().use { session ->
            val text = StringBuilder()
            val finish = session.complete("hello", GenerateOptions(maxTokens = 3)) { text.append(it); true }
            check(finish == Finish.MAX_TOKENS && text.isNotEmpty()) { "$finish $text" }
        }
    }
}

private val question = listOf(Message("user", "What is the capital of France? Answer in JSON."))
private const val SCHEMA = """{"type": "object", "properties": {"capital": {"enum": ["London", "Paris", "Rome"]}},
    "required": ["capital"], "additionalProperties": false}"""

private fun answers(session: Session) {
    val text = StringBuilder()
    val tokens = mutableListOf<String>()
    val options = GenerateOptions(maxTokens = 64, jsonSchema = SCHEMA, logProbs = 2)
    val listed = { chosen: LogProb, top: List<LogProb> ->
        check(top.size == 2 && top[0].logProb >= top[1].logProb && chosen.logProb <= top[0].logProb) { top }
        tokens += chosen.text
        true
    }
    val finish = session.chat(question, options, listed) { text.append(it); true }
    check(finish == Finish.END_OF_TEXT && "\"Paris\"" in text && text.endsWith("}")) { "$finish: $text" }
    check(tokens.joinToString("") == text.toString()) { tokens }
    check(session.metrics.tokens == tokens.size && session.metrics.decodeSeconds > 0) { session.metrics }
    check(session.chat(question) { false } == Finish.CALLBACK)
    check("json_schema" in failure { session.chat(question, GenerateOptions(jsonSchema = "{")) { true } }.message.orEmpty())
    check("temperature" in failure { session.chat(question, GenerateOptions(temperature = -1f)) { true } }.message.orEmpty())
    session.cancel()
    check(session.chat(question) { true } == Finish.CANCELLED)
    session.clear()
}

/** A callback may cancel its request while another thread closes it. */
private fun closed(chat: String, options: LoadOptions) = Batcher(chat, options, 2).use { batcher ->
    val handed = CompletableFuture<Request>()
    val isRunning = CountDownLatch(1)
    val isCancelled = CountDownLatch(1)
    val request = batcher.chat(question) {
        isRunning.countDown()
        Thread.sleep(300)
        handed.get().cancel()
        isCancelled.countDown()
        true
    }
    handed.complete(request)
    isRunning.await()
    val closer = Thread { request.close() }
    closer.isDaemon = true
    closer.start()
    check(isCancelled.await(20, TimeUnit.SECONDS)) { "cancel waits for close" }
    closer.join(20_000)
    check(!closer.isAlive) { "close does not end" }
    request.close()
    request.cancel()
    try {
        request.await()
        throw AssertionError("used after close")
    } catch (e: IllegalStateException) {
        check("close" in e.message.orEmpty()) { e }
    }
}

private fun batches(chat: String, options: LoadOptions) = Batcher(chat, options, 2).use { batcher ->
    val texts = List(3) { StringBuffer() }
    val asked = GenerateOptions(maxTokens = 64, jsonSchema = SCHEMA)
    val requests = texts.map { text -> batcher.chat(question, asked) { text.append(it); true } }
    val failing = batcher.chat(question) { throw IllegalArgumentException("mine") }
    requests.zip(texts).forEach { (request, text) ->
        request.use { check(it.await() == Finish.END_OF_TEXT && "\"Paris\"" in text) { text } }
    }
    val thrown = failing.use {
        try {
            it.await()
            null
        } catch (e: IllegalArgumentException) {
            e.message
        }
    }
    check(thrown == "mine") { "$thrown" }
}
