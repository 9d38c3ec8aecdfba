// Replaces two large utility files of Mesa for its shim: options from the environment, and the
// length of a formatted text.
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool debug_get_bool_option(const char *name, bool otherwise) {
  const char *text = getenv(name);
  if (!text) return otherwise;
  return *text && strcmp(text, "0") && strcmp(text, "false");
}

size_t u_printf_length(const char *format, va_list arguments) {
  va_list copy;
  va_copy(copy, arguments);
  int length = vsnprintf(NULL, 0, format, copy);
  va_end(copy);
  return length < 0 ? 0 : (size_t)length;
}
