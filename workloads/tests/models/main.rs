//! Models as they are shipped, fetched and drawn at random.

#[path = "../fetched/mod.rs"]
mod fetched;
#[path = "../shadow/mod.rs"]
mod shadow;

mod accuracy;
mod damaged_weights;
mod g2p_en;
mod joined;
mod minilm;
mod mobilenet;
mod silero_vad;
mod stories260k;
mod zoo;
