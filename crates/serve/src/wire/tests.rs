//! Tests of conversions.
