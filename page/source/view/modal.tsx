// A modal dialog of the browser, which keeps the focus inside, and the labelled fields in it.

import type { ComponentChildren } from "preact";
import { useEffect, useRef } from "preact/hooks";

interface ModalProps {
  title: string;
  close(): void;
  children: ComponentChildren;
}

export function Modal({ title, close, children }: ModalProps) {
  const place = useRef<HTMLDialogElement>(null);
  useEffect(() => place.current?.showModal(), []);
  return (
    <dialog
      ref={place}
      aria-label={title}
      onClose={close}
      onClick={(event) => event.target === place.current && close()}
    >
      <div class="inside">
        <h2>{title}</h2>
        {children}
      </div>
    </dialog>
  );
}

interface FieldProps {
  label: string;
  hint?: string;
  problem?: string | undefined;
  children: ComponentChildren;
}

export function Field({ label, hint, problem, children }: FieldProps) {
  return (
    <label class="field">
      <span>{label}</span>
      {children}
      {problem ? (
        <small class="problem" role="alert">
          {problem}
        </small>
      ) : (
        hint && <small>{hint}</small>
      )}
    </label>
  );
}
