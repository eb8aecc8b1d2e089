//! Devices at whose requests a test acts.

use larder_device::{Device, Outcome, Pending, Request};
use larder_format::ByteLen;
use std::sync::{Arc, Mutex};

type Act = dyn Fn(&Request) + Send + Sync;

/// Someone who acts at requests before the device gets them, or nobody.
#[derive(Clone, Default)]
pub struct Hook(Arc<Mutex<Option<Arc<Act>>>>);

impl Hook {
    /// Has `act` called at every request, by whoever makes it; at several at once where several are made.
    pub fn set(&self, act: impl Fn(&Request) + Send + Sync + 'static) {
        *self.0.lock().unwrap() = Some(Arc::new(act));
    }

    /// Has `act` called at requests that are `wanted`; those that are made while it is under way go by: it may make
    /// some, or wait for who does.
    pub fn set_one_at_a_time(
        &self,
        wanted: fn(&Request) -> bool,
        act: impl FnMut(&Request) + Send + 'static,
    ) {
        let act = Mutex::new(act);
        self.set(move |request| {
            if wanted(request)
                && let Ok(mut act) = act.try_lock()
            {
                act(request);
            }
        });
    }

    /// Nobody acts any more, but who is at it.
    pub fn clear(&self) {
        *self.0.lock().unwrap() = None;
    }

    /// A request is made.
    pub fn act(&self, request: &Request) {
        // Not locked meanwhile: another request may end here.
        let act = self.0.lock().unwrap().clone();
        if let Some(act) = act {
            act(request);
        }
    }
}

/// A device with a hook.
pub struct Hooked {
    inner: Arc<dyn Device>,
    hook: Hook,
}

impl Device for Hooked {
    fn name(&self) -> String {
        self.inner.name()
    }
    fn size(&self) -> ByteLen {
        self.inner.size()
    }
    fn submit(&self, request: Request) -> Pending<Outcome> {
        self.hook.act(&request);
        self.inner.submit(request)
    }
}

/// `inner` with a hook.
pub fn hooked(inner: Arc<dyn Device>) -> (Arc<dyn Device>, Hook) {
    let hook = Hook::default();
    (Arc::new(Hooked { inner, hook: hook.clone() }), hook)
}
