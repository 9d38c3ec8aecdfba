package org.transformerlite

import android.system.Os

/**
 * Sets the names of the OpenCL libraries to try, the same as in the manifest; the first that opens
 * is used. Call it before any other function: the library reads the variable when OpenCL is first
 * used, and in a process with threads [Os.setenv] is the safe way to set it.
 */
fun prepareAndroid() = Os.setenv("OPENCL_DYLIB_PATH", "libOpenCL.so;libGLES_mali.so;libmali.so;libPVROCL.so", false)
