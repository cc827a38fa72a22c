// Conversations in IndexedDB. Where the browser forbids it they last as long as the tab.

import type { Conversation } from "./conversation";

const STORE = "conversations";

export class Database {
  private constructor(private readonly database: IDBDatabase | null) {}

  /** Whether conversations outlive the tab. */
  get lasting(): boolean {
    return this.database !== null;
  }

  static open(): Promise<Database> {
    return new Promise((resolve) => {
      try {
        const request = indexedDB.open("rtp-llm", 1);
        request.onupgradeneeded = () => request.result.createObjectStore(STORE, { keyPath: "id" });
        request.onsuccess = () => resolve(new Database(request.result));
        request.onerror = () => resolve(new Database(null));
        request.onblocked = () => resolve(new Database(null));
      } catch {
        resolve(new Database(null));
      }
    });
  }

  async all(): Promise<Conversation[]> {
    return (await this.run("readonly", (store) => store.getAll())) ?? [];
  }

  async one(id: string): Promise<Conversation | undefined> {
    return this.run("readonly", (store) => store.get(id));
  }

  /** Rejects if the disk is full. */
  async put(conversation: Conversation): Promise<void> {
    await this.run("readwrite", (store) => store.put(conversation));
  }

  async remove(id: string): Promise<void> {
    await this.run("readwrite", (store) => store.delete(id));
  }

  private run<T>(
    mode: IDBTransactionMode,
    ask: (store: IDBObjectStore) => IDBRequest<T>,
  ): Promise<T | undefined> {
    const database = this.database;
    if (!database) return Promise.resolve(undefined);
    return new Promise((resolve, reject) => {
      const transaction = database.transaction(STORE, mode);
      const request = ask(transaction.objectStore(STORE));
      transaction.oncomplete = () => resolve(request.result);
      transaction.onabort = () => reject(transaction.error);
      transaction.onerror = () => reject(transaction.error);
    });
  }
}
