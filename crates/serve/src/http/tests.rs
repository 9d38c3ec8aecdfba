//! Tests of routes.
