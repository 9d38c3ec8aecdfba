package org.transformerlite

import kotlinx.coroutines.channels.awaitClose
import kotlinx.coroutines.channels.trySendBlocking
import kotlinx.coroutines.flow.Flow
import kotlinx.coroutines.flow.callbackFlow

/** The text of an answer as a flow. The request ends when the collection does. */
fun Batcher.texts(messages: List<Message>, options: GenerateOptions = GenerateOptions()): Flow<String> = callbackFlow {
    val request = chat(messages, options) { piece -> trySendBlocking(piece).isSuccess }
    val waiter = Thread {
        try {
            request.await()
            close()
        } catch (e: Throwable) {
            close(e)
        }
    }
    waiter.start()
    awaitClose {
        request.cancel()
        waiter.join()
        request.close()
    }
}
