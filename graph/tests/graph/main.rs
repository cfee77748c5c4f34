//! Programs: how they are built, read, checked and changed.

mod folder;
mod manifest;
mod passes;
mod published;
mod random;
mod verify;
mod weights;
