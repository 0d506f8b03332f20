//! What tests, benches and the command share; knows no engine type.
