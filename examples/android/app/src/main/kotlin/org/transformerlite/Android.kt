package org.transformerlite

import android.system.Os

/**
 * Names the OpenCL libraries of phones, of which the first that can be opened is used; they are those
 * in the manifest. Call it before any other function: the library reads the variable when OpenCL is
 * first used, and in a process with threads [Os.setenv] is the safe way to set it.
 */
fun prepareAndroid() = Os.setenv("OPENCL_DYLIB_PATH", "libOpenCL.so;libGLES_mali.so;libmali.so;libPVROCL.so", false)
