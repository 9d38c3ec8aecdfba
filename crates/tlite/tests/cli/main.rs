//! The command as a user sees it: its commands, messages, pages and documents.

mod chat;
mod commands;
mod docs;
mod documents;
mod habits;
mod hub;
mod inspect;
mod inspect_page;
mod layering;
mod lines;
mod messages;
mod models_folder;
mod roofline;
mod sizes;
mod slices;
